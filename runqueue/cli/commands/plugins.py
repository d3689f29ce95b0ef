"""`plugins`: what decides here, and what could."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from runqueue.cli import output
from runqueue.cli.app import App, pass_app
from runqueue.cli.options import command, json_option

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from runqueue.decisions import PluginInfo

COLUMNS = ("name", "use", "version", "source", "hooks", "options")


@command("plugins", example="runqueue plugins --plugin fairness")
@json_option("a JSON document")
@pass_app
def plugins(app: App, as_json: bool) -> None:
    """List the plugins in their order, and those that are installed but not used.

    The columns: name, use, version, source, hooks, options. `use` is default, named, or no. Of several plugins that
    could answer, the one further down does. Needs no database.
    """
    app.log()
    rows = [*_used(app), *_unused(app)]
    if as_json:
        output.document({"plugins": rows})
        return
    output.table(COLUMNS, [_cells(row) for row in rows], cut=("source", "hooks", "options"), wide=("source",))


def _used(app: App) -> list[dict[str, Any]]:
    from runqueue.hooks.manager import DEFAULTS

    hooks = app.core.ctx.hooks
    _ = app.commands  # so that a plugin which cannot bring its commands is found here too
    defaults = set(DEFAULTS).difference(app.config.plugins)
    return [_row(x, defaults, hooks.redact(dict(x.options), "log")) for x in hooks.plugins()]


def _row(plugin: PluginInfo, defaults: Collection[str], options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": plugin.name,
        "use": "default" if plugin.name in defaults else "named",
        "version": plugin.version,
        "source": plugin.source,
        "hooks": list(plugin.hooks),
        "options": options,
    }


def _unused(app: App) -> list[dict[str, Any]]:
    from runqueue.hooks.loading import installed

    used = {x.name for x in app.core.ctx.hooks.plugins()}
    found = sorted((x for x in installed() if x.name not in used), key=lambda x: x.name)
    return [
        {
            "name": x.name,
            "use": "no",
            "version": x.dist.version if x.dist else "",
            "source": x.dist.name if x.dist else "?",
        }
        for x in found
    ]


def _cells(row: dict[str, Any]) -> list[Any]:
    hooks = ", ".join(x.removeprefix("runqueue_") for x in row.get("hooks", ()))
    options = row.get("options")
    return [row["name"], row["use"], row["version"], row["source"], hooks, output.to_json(options) if options else ""]
