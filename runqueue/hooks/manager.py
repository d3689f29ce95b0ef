"""One plugin manager per queue, with a typed method for each hook that says how results merge."""

from __future__ import annotations

import inspect
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

import pluggy
from sqlalchemy import Connection, FromClause, Table

from runqueue.decisions import (
    CheckpointStore,
    ClaimOrder,
    Failure,
    KeepLast,
    PluginInfo,
    PluginSchema,
    RetryDelay,
    TenantPolicy,
)
from runqueue.driver import is_autocommit
from runqueue.errors import InvalidRun, PluginError
from runqueue.failures import describe, stack
from runqueue.hooks import specs
from runqueue.hooks.loading import Loaded, installed, load, name_of, near
from runqueue.settings import Settings
from runqueue.types import ClaimedRun, Run
from runqueue.values import seconds

if TYPE_CHECKING:
    import click

DEFAULTS = ("priority", "backoff", "checkpoints", "redaction")
"""What decides where no named plugin does. These are plugins like any other."""

ALONE = ("runqueue_claim_order", "runqueue_tenant_policy", "runqueue_checkpoint_store")
"""Hooks that one named plugin may implement: two answers could not be merged into one."""

OWN_RULES = ("claim_order", "tenant_policy")
"""The rules that name a plugin, which the processes that claim must all use."""

WITHHELD = "[withheld: redaction failed]"

log = logging.getLogger("runqueue.hooks")


class Hooks:
    """The plugins of one queue. The defaults are registered first, so a named plugin is asked before them.

    Safe to share between threads. `errors` counts, by plugin, the exceptions of observers.
    """

    def __init__(
        self,
        plugins: Sequence[str | object] = (),
        options: Mapping[str, Mapping[str, Any]] | None = None,
        without: Sequence[str] = (),
    ) -> None:
        self.errors = Counter[str]()
        self._manager = pluggy.PluginManager(specs.PROJECT)
        self._manager.add_hookspecs(specs)
        self._loaded = _load_all(plugins, options or {}, without)
        for one in self._loaded:
            self._register(one)
        try:
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            hooks = [x for x in vars(specs) if x.startswith("runqueue_")]
            raise PluginError(f"a hook that does not exist: {error}{near(_misspelt(error), hooks)}") from error
        chosen = {x if isinstance(x, str) else name_of(x) for x in plugins}
        for hook in ALONE:
            named = [x.plugin_name for x in self._implementations(hook) if x.plugin_name in chosen]
            if len(named) > 1:
                raise PluginError(f"only one plugin may implement {hook}, not both of {', '.join(named)}")
        self.rules = self._rules()
        """The rules of the install that the plugins read, each with the check of its values."""

    def _rules(self) -> dict[str, Callable[[Any], object]]:
        found: dict[str, Callable[[Any], object]] = {}
        for name, call in self._calls("runqueue_rules"):
            rules = call() or {}
            if not isinstance(rules, Mapping) or not all(isinstance(x, str) and callable(y) for x, y in rules.items()):
                raise PluginError(f"runqueue_rules of the plugin {name!r} must return checks by name, not {rules!r}")
            for rule in rules:
                if rule in found or rule in OWN_RULES:
                    raise PluginError(f"the plugin {name!r} may not read the rule {rule!r}: it is another's")
            found |= rules
        return found

    def _register(self, loaded: Loaded) -> None:
        try:
            self._manager.register(loaded.plugin, loaded.name)
        except (ValueError, pluggy.PluginValidationError) as error:
            raise PluginError(f"the plugin {loaded.name!r} cannot be used: {error}") from error
        callers = self._manager.get_hookcallers(loaded.plugin)
        if not callers:
            raise PluginError(f"the plugin {loaded.name!r} implements no hook: is it marked with @hookimpl?")
        for one in (x for caller in callers for x in caller.get_hookimpls() if x.plugin is loaded.plugin):
            if inspect.iscoroutinefunction(one.function):
                raise PluginError(f"the plugin {loaded.name!r} must implement {one.function.__name__} without async")
            if one.wrapper or one.hookwrapper:
                raise PluginError(f"the plugin {loaded.name!r} must not wrap {one.function.__name__}")
        for place in getattr(loaded.plugin, "redacts", ()):
            if place not in get_args(specs.Place):
                told = f"{place!r}{near(str(place), get_args(specs.Place))}"
                raise PluginError(f"the plugin {loaded.name!r} redacts a place that does not exist: {told}")

    def plugins(self) -> list[PluginInfo]:
        """The plugins in the order in which they were registered, defaults first."""
        return [
            PluginInfo(
                x.name,
                x.version,
                x.source,
                tuple(sorted(c.name for c in self._manager.get_hookcallers(x.plugin) or ())),
                x.options,
            )
            for x in self._loaded
        ]

    # ------------------------------------------------------------------------------------------------- decisions

    def claim_order(self, runs: Table, rules: FromClause) -> ClaimOrder:
        """The order of the plugin that answers first."""
        order = self._manager.hook.runqueue_claim_order(runs=runs, rules=rules)
        if not isinstance(order, ClaimOrder):
            raise PluginError(f"runqueue_claim_order must return a ClaimOrder, not {order!r}")
        columns = (*order.terms, *([] if order.level is None else [order.level]))
        if not order.terms or any(getattr(x, "table", None) is not runs for x in columns):
            raise PluginError("runqueue_claim_order must order by columns of the table that it is given")
        if order.step is not None and (order.level is None or order.terms[0] is not runs.c.available_at):
            raise PluginError("runqueue_claim_order: a step needs a level, and available_at as the first term")
        return order

    def order_name(self) -> str:
        """The name of the plugin that orders."""
        return self._decider("runqueue_claim_order") or ""

    def tenant_policy(self, tenants: FromClause, rules: FromClause) -> TenantPolicy | None:
        """The policy of the plugin that decides on tenants, None where none does."""
        policy = self._manager.hook.runqueue_tenant_policy(tenants=tenants, rules=rules)
        if policy is not None and not isinstance(policy, TenantPolicy):
            raise PluginError(f"runqueue_tenant_policy must return a TenantPolicy or None, not {policy!r}")
        return policy

    def tenant_policy_name(self) -> str:
        """The name of the plugin that decides on tenants, empty where none does."""
        return self._decider("runqueue_tenant_policy") or ""

    def checkpoint_store(self, settings: Settings) -> CheckpointStore | KeepLast:
        """The store of the plugin that answers first."""
        store = self._manager.hook.runqueue_checkpoint_store(settings=settings)
        if not isinstance(store, (KeepLast, CheckpointStore)):
            raise PluginError(f"runqueue_checkpoint_store must return a CheckpointStore or KeepLast, not {store!r}")
        return store

    def retry_delay(self, failure: Failure, settings: Settings) -> RetryDelay:
        """The delay of the plugin that answers first."""
        hook = self._manager.hook.runqueue_retry_delay
        answer: Any = hook(failure=failure, settings=settings)
        delay = answer if isinstance(answer, RetryDelay) else RetryDelay(answer)
        if delay.seconds == math.inf:
            return RetryDelay(math.inf, str(delay.reason))
        try:
            return RetryDelay(seconds(delay.seconds, field="delay"), str(delay.reason))
        except InvalidRun as error:
            raise PluginError(f"runqueue_retry_delay returned a {error}") from error

    def redact(self, value: Any, place: specs.Place) -> Any:
        """What may be stored of a value, after all plugins. Never fails: what cannot be redacted is not stored."""
        left = value
        try:
            for one in self._redactors(place):
                answer = _call(one, {"value": left, "place": place})
                left = left if answer is None else answer
        except BaseException as error:  # SystemExit and the like too: the run that failed must be settled
            # what it says may quote the value
            log.error("a redaction plugin failed, a value is withheld: %s\n%s", type(error).__name__, stack(error))
            return WITHHELD
        return left if not isinstance(value, str) or isinstance(left, str) else WITHHELD

    def redacts(self, place: specs.Place) -> bool:
        """Whether any plugin is to be asked about this place."""
        return bool(self._redactors(place))

    def _redactors(self, place: specs.Place) -> list[pluggy.HookImpl]:
        found = self._implementations("runqueue_redact")
        return [x for x in found if place in getattr(x.plugin, "redacts", specs.USUAL)]

    # ------------------------------------------------------------------------------------------------- observers

    def observes(self, hook: str) -> bool:
        """Whether any plugin implements this hook; without, the operation needs no transaction for it."""
        return bool(getattr(self._manager.hook, hook).get_hookimpls())

    def runs_enqueued(self, connection: Connection, runs: Sequence[Run], schema: str) -> None:
        """Tell the observers in savepoints."""
        self._tell_in(connection, "runqueue_runs_enqueued", runs, schema)

    def runs_claimed(self, connection: Connection, runs: Sequence[ClaimedRun], schema: str) -> None:
        """Tell the observers in savepoints."""
        self._tell_in(connection, "runqueue_runs_claimed", runs, schema)

    def runs_finished(self, connection: Connection, runs: Sequence[Run], schema: str) -> None:
        """Tell the observers in savepoints."""
        self._tell_in(connection, "runqueue_runs_finished", runs, schema)

    def run_started(self, run: ClaimedRun) -> None:
        """Tell the observers."""
        for name, call in self._calls("runqueue_run_started", run=run):
            self._contained(name, call)

    def run_ended(self, run: ClaimedRun, outcome: str, error: BaseException | None) -> None:
        """Tell the observers."""
        for name, call in self._calls("runqueue_run_ended", run=run, outcome=outcome, error=error):
            self._contained(name, call)

    def _tell_in(self, connection: Connection, hook: str, runs: Sequence[Run | ClaimedRun], schema: str) -> None:
        if not runs:
            return
        for name, call in self._calls(hook, connection=connection, runs=runs, schema=schema):
            self._contained(name, partial(_in_savepoint, connection, call))

    def _contained(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # an observer that calls sys.exit() must not end a worker's thread either
            self.errors[name] += 1
            said = self.redact(": ".join(describe(error)), "log")
            log.error("the observer %s failed; nothing else is affected: %s\n%s", name, said, stack(error))

    # ---------------------------------------------------------------------------------------------------- others

    def schema(self, schema: str) -> list[PluginSchema]:
        """What the plugins need in the database."""
        needs = self._manager.hook.runqueue_schema(schema=schema)
        for need in needs:
            if not isinstance(need, PluginSchema):
                raise PluginError(f"runqueue_schema must return a PluginSchema or None, not {need!r}")
        return list(needs)

    def commands(self, group: click.Group) -> None:
        """Let the plugins add their commands to those that the group has. Raises PluginError."""
        for name, call in self._calls("runqueue_commands", group=group):
            before = dict(group.commands)
            try:
                call()
            except Exception as error:
                raise PluginError(f"the plugin {name!r} cannot add its commands: {error!r}") from error
            for command, there in before.items():
                if group.commands.get(command) is not there:
                    raise PluginError(f"the plugin {name!r} brings a command {command!r}, which there is already")

    def _decider(self, hook: str) -> str | None:
        found = self._implementations(hook)
        return found[-1].plugin_name if found else None

    def _implementations(self, hook: str) -> list[pluggy.HookImpl]:
        """In the order of the configuration, unless an implementation asks to come first or last."""
        found: list[pluggy.HookImpl] = getattr(self._manager.hook, hook).get_hookimpls()
        return found

    def _calls(self, hook: str, **arguments: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
        for one in self._implementations(hook):
            yield one.plugin_name, partial(_call, one, arguments)


def _load_all(
    plugins: Sequence[str | object], options: Mapping[str, Mapping[str, Any]], without: Sequence[str]
) -> list[Loaded]:
    if isinstance(plugins, str):
        raise PluginError(f"plugins must be a list of names and objects, not the string {plugins!r}")
    there = installed()
    names = [x if isinstance(x, str) else name_of(x) for x in plugins]
    for name in names:
        if names.count(name) > 1:
            raise PluginError(f"the plugin {name!r} is named twice")
    given = [x for x in DEFAULTS if x not in names] + list(plugins)
    known = {x if isinstance(x, str) else name_of(x) for x in given}
    for name, about in (*((x, "without") for x in without), *((x, f"plugin.{x}") for x in options)):
        if name not in known:
            used = ", ".join(sorted(known))
            raise PluginError(f"no plugin {name!r} is in use{near(name, known)} (in use: {used})", about)
    wanted = [(x, x if isinstance(x, str) else name_of(x)) for x in given]
    return [load(x, options.get(name, {}), there) for x, name in wanted if name not in without]


def _call(one: pluggy.HookImpl, arguments: Mapping[str, Any]) -> Any:
    return one.function(*(arguments[name] for name in one.argnames))


def _in_savepoint(connection: Connection, call: Callable[[], object]) -> None:
    if is_autocommit(connection):
        call()
    else:
        with connection.begin_nested():
            call()


def _misspelt(error: pluggy.PluginValidationError) -> str:
    return next((word.strip("'") for word in str(error).split() if word.startswith("'runqueue_")), "")
