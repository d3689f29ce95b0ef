"""One plugin manager per queue, with a typed method for each hook."""

from __future__ import annotations

import difflib
import logging
import math
from collections.abc import Sequence
from importlib.metadata import EntryPoints, entry_points
from typing import Any

import pluggy
from sqlalchemy import Table

from runqueue.errors import InvalidRun, PluginError
from runqueue.hooks import specs
from runqueue.order import ClaimOrder
from runqueue.settings import Settings
from runqueue.values import seconds

DEFAULTS = ("priority", "backoff", "redaction")
"""What decides where no named plugin does. These are plugins like any other."""

log = logging.getLogger("runqueue.hooks")


class Hooks:
    """The plugins of one queue. The defaults are registered first, so a named plugin is asked before them."""

    def __init__(self, plugins: Sequence[str | object] = ()) -> None:
        self._manager = pluggy.PluginManager(specs.PROJECT)
        self._manager.add_hookspecs(specs)
        installed = entry_points(group=specs.PROJECT)
        for plugin in (*DEFAULTS, *plugins):
            self._register(plugin, installed)
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            raise PluginError(f"a hook that does not exist: {error}") from error

    def _register(self, plugin: str | object, installed: EntryPoints) -> None:
        name = plugin if isinstance(plugin, str) else getattr(plugin, "__name__", type(plugin).__name__)
        implementation = _load(plugin, installed) if isinstance(plugin, str) else plugin
        try:
            self._manager.register(implementation, name)
        except (ValueError, pluggy.PluginValidationError) as error:
            raise PluginError(f"the plugin {name!r} cannot be used: {error}") from error

    def claim_order(self, runs: Table) -> ClaimOrder:
        """The order of the plugin that answers first."""
        order = self._manager.hook.runqueue_claim_order(runs=runs)
        if not isinstance(order, ClaimOrder):
            raise PluginError(f"runqueue_claim_order must return a ClaimOrder, not {order!r}")
        return order

    def retry_delay(self, kind: str, attempts: int, error_code: str, settings: Settings) -> float:
        """Seconds until the next attempt, `math.inf` for none."""
        hook = self._manager.hook.runqueue_retry_delay
        delay: Any = hook(kind=kind, attempts=attempts, error_code=error_code, settings=settings)
        if delay == math.inf:
            return math.inf
        try:
            return seconds(delay, field="delay")
        except InvalidRun as error:
            raise PluginError(f"runqueue_retry_delay returned a {error}") from error

    def redact(self, text: str) -> str:
        """What may be stored of an error's text. Never fails: what cannot be redacted is not stored."""
        try:
            redacted = self._manager.hook.runqueue_redact(text=text)
        except BaseException:  # SystemExit and the like too: the run that failed must be settled
            log.exception("a redaction plugin failed; the text is withheld")
            return "[withheld: redaction failed]"
        return redacted if isinstance(redacted, str) else "[withheld: nothing redacts]"


def _load(name: str, installed: EntryPoints) -> object:
    found = tuple(installed.select(name=name))
    if not found:
        names = sorted(installed.names)
        near = difflib.get_close_matches(name, names, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PluginError(f"no plugin {name!r} is installed{hint} (installed: {', '.join(names) or 'none'})")
    if len(found) > 1:
        owners = ", ".join(x.dist.name if x.dist else "?" for x in found)
        raise PluginError(f"several distributions bring a plugin {name!r}: {owners}")
    try:
        return found[0].load()
    except Exception as error:
        raise PluginError(f"the plugin {name!r} cannot be imported: {error!r}") from error
