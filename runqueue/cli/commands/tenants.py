"""`tenants`: shares, and caps on what is in flight."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from runqueue.cli import output
from runqueue.cli.app import App, pass_app
from runqueue.cli.options import command, group, json_option

if TYPE_CHECKING:
    from runqueue.queue import RunQueue

COLUMNS = ("tenant_id", "weight", "cap", "in_flight", "usage", "used_at")
NONE = ("none",)
"""What stands for the default, among numbers."""


def a_weight(text: str) -> Any:
    """A number, or `NONE` for `none`. Raises click.BadParameter."""
    return _number(text, float)


def a_cap(text: str) -> Any:
    """A whole number, or `NONE` for `none`. Raises click.BadParameter."""
    return _number(text, int)


def _number(text: str, kind: type[int] | type[float]) -> Any:
    try:
        return NONE if text == "none" else kind(text)
    except (ValueError, OverflowError):
        what = "whole number" if kind is int else "number"
        raise click.BadParameter(f"{text!r} is no {what}; `none` stands for the default") from None


@group("tenants", example="runqueue tenants set acme --weight 2 --cap 5")
@click.option("--after", default="", metavar="NAME", help="Go on after this tenant, the last one of the page before.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many.")
@json_option("each tenant as a line of JSON")
@click.pass_context
def tenants(context: click.Context, after: str, limit: int, as_json: bool) -> None:
    """List the tenants with runs in flight, a weight, a cap or a usage.

    The columns: tenant_id, weight, cap, in_flight, usage, used_at. An empty weight or cap is the default: what the
    tenant policy says. Further commands set them.
    """
    if context.invoked_subcommand is not None:
        return
    app = context.ensure_object(App)
    app.log()
    rows = [asdict(x) for x in app.queue.tenants(after=after, limit=limit + 1)]
    if as_json:
        for row in rows[:limit]:
            output.json_line(row)
    else:
        cells = ([row[x] for x in COLUMNS] for row in rows[:limit])
        output.table(COLUMNS, cells, cut=("tenant_id",), wide=("used_at",))
    if len(rows) > limit:
        output.note(f"there are more: --after {shlex.quote(rows[limit - 1]['tenant_id'])}")


@command("set", example="runqueue tenants set acme --weight 2 --cap 5")
@click.argument("tenant_id", metavar="TENANT")
@click.option("--weight", type=a_weight, metavar="W|none", help="The share: twice the weight gets twice the runs.")
@click.option("--cap", type=a_cap, metavar="N|none", help="The most runs in flight; 0 stops the tenant.")
@json_option("the tenant as a line of JSON")
@pass_app
def set_tenant(app: App, /, tenant_id: str, as_json: bool, **given: Any) -> None:
    """Set the share of TENANT, its cap, or both. What is not given stays as it is; `none` is the default.

    It counts for claims within half a second. Runs in flight beyond a lower cap go on.
    """
    changes = {name: None if x is NONE else x for name, x in given.items() if x is not None}
    if not changes:
        raise click.UsageError("give --weight, --cap, or both")
    _change(app, tenant_id, as_json, changes)


@command("clear", example="runqueue tenants clear acme")
@click.argument("tenant_id", metavar="TENANT")
@json_option("the tenant as a line of JSON")
@pass_app
def clear_tenant(app: App, tenant_id: str, as_json: bool) -> None:
    """Give TENANT the default weight and cap again. What it has had is not forgotten."""
    _change(app, tenant_id, as_json, {"weight": None, "cap": None})


def _change(app: App, tenant_id: str, as_json: bool, changes: dict[str, Any]) -> None:
    app.log()
    queue = app.queue
    queue.set_tenant(tenant_id, **changes)
    row = asdict(queue.tenant(tenant_id))
    if as_json:
        output.json_line(row)
    else:
        output.facts((x, "default" if row[x] is None else row[x]) for x in COLUMNS[:4])
    _tell_who_decides(queue)


def _tell_who_decides(queue: RunQueue) -> None:
    if not queue.rules().get("tenant_policy"):
        output.note("nobody decides on tenants in this install yet: it counts once the workers use, say, fairness")


tenants.add_command(set_tenant)
tenants.add_command(clear_tenant)
