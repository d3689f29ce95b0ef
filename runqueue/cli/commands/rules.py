"""`rules`: what all processes of an install share, kept in its database."""

from __future__ import annotations

import json
from typing import Any

import click

from runqueue.cli import output
from runqueue.cli.app import App, pass_app
from runqueue.cli.options import command, group, json_option


def rule_value(text: str) -> Any:
    """What a JSON text stands for; any other text is itself. Raises click.BadParameter for null."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if value is None:
        raise click.BadParameter("null is no value: a rule is removed with `runqueue rules unset`")
    return value


@group("rules", example="runqueue rules set aging.step 300 --plugin aging")
@json_option("a JSON document")
@click.pass_context
def rules(context: click.Context, as_json: bool) -> None:
    """List the rules of the install that were set.

    `claim_order` and `tenant_policy` name the plugins that all workers must use; the first worker states them. The
    others are read by plugins.
    """
    if context.invoked_subcommand is not None:
        return
    app = context.ensure_object(App)
    app.log()
    found = app.queue.rules()
    if as_json:
        output.document({"rules": found})
    else:
        output.table(("rule", "value"), ((name, output.to_json(x)) for name, x in found.items()), cut=("value",))


@command("set", example="runqueue rules set fairness.cap 5 --plugin fairness")
@click.argument("name")
@click.argument("value", type=rule_value)
@pass_app
def set_rule(app: App, name: str, value: Any) -> None:
    """Set the rule NAME to VALUE: JSON, or else a text.

    What a plugin reads counts for claims within half a second. The plugin must be named here, for it checks the value.
    To change claim_order or tenant_policy, stop the workers, set the rule, and start them with the plugin.
    """
    app.log()
    app.queue.set_rule(name, value)
    output.line(name, output.to_json(value))
    if name in ("claim_order", "tenant_policy"):
        _tell_who_must_restart(value)


@command("unset", example="runqueue rules unset fairness.cap")
@click.argument("name")
@pass_app
def unset_rule(app: App, name: str) -> None:
    """Remove the rule NAME, so that the default counts."""
    app.log()
    app.queue.set_rule(name, None)
    output.line(f"{name}: not set")


def _tell_who_must_restart(value: Any) -> None:
    from runqueue.hooks.loading import installed, near

    names = installed().names
    if value and value not in names:
        output.note(f"no plugin {value!r} is installed here{near(value, names)}")
    output.note("workers that run now do not know it yet: stop them all before, and start them with the plugin after")


rules.add_command(set_rule)
rules.add_command(unset_rule)
