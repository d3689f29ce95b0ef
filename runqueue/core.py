"""What the sync and the async queue share: the rules of an install, and how an operation gets its transaction."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar
from uuid import UUID

from sqlalchemy import URL, Connection, Index, func, make_url, select
from sqlalchemy.exc import ArgumentError, DBAPIError
from tenacity import AsyncRetrying, Retrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from runqueue import values
from runqueue.deadline import Deadlines
from runqueue.decisions import KeepLast
from runqueue.errors import InvalidRun
from runqueue.hooks.manager import Hooks
from runqueue.operations import claim, maintain, settle
from runqueue.operations.claim import Kind
from runqueue.operations.context import Context
from runqueue.operations.redacting import encode
from runqueue.operations.rules import require_agreement
from runqueue.policies import ClaimPolicy, policy
from runqueue.schema.indexes import index_state
from runqueue.schema.tables import tables
from runqueue.schema.version import require_version
from runqueue.settings import Settings
from runqueue.statements.turns import candidate
from runqueue.types import Lease, RunStatus, Seconds

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate[Connection, Context, P], T]
Handler = Callable[..., Any]

log = logging.getLogger("runqueue")


@dataclass(frozen=True, slots=True)
class HandlerSpec:
    """A registered handler. Durations are seconds."""

    kind: str
    function: Handler
    timeout: float | None
    on_lost: Literal["retry", "fail"]
    cancel_grace: float

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function, or an object that is called as one."""
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(type(self.function).__call__)


@dataclass
class Core:
    """One install as one process sees it."""

    ctx: Context
    deadlines: Deadlines = field(default_factory=Deadlines)
    handlers: dict[str, HandlerSpec] = field(default_factory=dict)
    known_isolation: Literal["AUTOCOMMIT", "READ COMMITTED"] | None = None

    @classmethod
    def build(
        cls,
        schema: str,
        claim_policy: str | ClaimPolicy,
        plugins: Sequence[str | object],
        settings: Settings | None,
        plugin_options: Mapping[str, Mapping[str, Any]] | None = None,
        without: Sequence[str] = (),
    ) -> Core:
        """Load the plugins and settle the rules. Raises PluginError and InvalidRun; touches no database."""
        t, settings, hooks = tables(schema), settings or Settings(), Hooks(plugins, plugin_options, without)
        order = hooks.claim_order(t.runs, t.rules)
        tenants = hooks.tenant_policy(candidate(t), t.rules)
        return cls(Context(t, settings, hooks, policy(claim_policy), order, tenants, hooks.checkpoint_store(settings)))

    def register(
        self,
        kind: str,
        *,
        timeout: Seconds | None,
        on_lost: Literal["retry", "fail"],
        cancel_grace: Seconds | None,
    ) -> Callable[[Handler], Handler]:
        """The decorator behind `queue.handler`."""
        name = values.name(kind, field="kind")
        if on_lost not in ("retry", "fail"):
            raise InvalidRun("on_lost", f"must be 'retry' or 'fail', not {on_lost!r}")
        limit = None if timeout is None else values.seconds(timeout, field="timeout")
        if limit == 0:
            raise InvalidRun("timeout", "must be greater than 0")
        grace = self.ctx.settings.cancel_grace
        if cancel_grace is not None:
            grace = values.seconds(cancel_grace, field="cancel_grace")

        def decorate(function: Handler) -> Handler:
            if name in self.handlers:
                raise InvalidRun("kind", f"{name!r} has a handler already")
            self.handlers[name] = HandlerSpec(name, function, limit, on_lost, grace)
            return function

        return decorate

    def kinds(self, names: Iterable[str] | None) -> list[Kind] | None:
        """What a claim must know of the kinds: the rules of the registered handlers, defaults for others."""
        if names is None:
            return None
        if isinstance(names, str):
            raise InvalidRun("kinds", f"must be a list of names, not the string {names!r}")
        return [self._kind(x) for x in dict.fromkeys(values.name(x, field="kinds") for x in names)]

    def _kind(self, name: str) -> Kind:
        spec = self.handlers.get(name)
        if spec is None:
            return Kind(name)
        settings = self.ctx.settings
        # the worker ends a handler at its timeout; this is for a worker that cannot, and must come clearly later
        deadline = None if spec.timeout is None else spec.timeout + spec.cancel_grace + settings.lease
        return Kind(name, deadline, spec.on_lost)

    def isolation(self, connection: Connection) -> Literal["AUTOCOMMIT", "READ COMMITTED"]:
        """How single statements are run: without BEGIN and COMMIT, two round trips less, where that is safe.

        The first call checks the schema, and what a statement outside a transaction would run at: a role or database
        may have another default than READ COMMITTED, under which claims would fail instead of skipping rows.
        """
        if self.known_isolation is None:
            require_version(connection, self.ctx.t.schema)
            default = connection.execute(select(func.current_setting("default_transaction_isolation"))).scalar_one()
            self.known_isolation = "AUTOCOMMIT" if default == "read committed" else "READ COMMITTED"
        return self.known_isolation

    def is_single(self, operation: Callable[..., Any]) -> bool:
        """Whether an operation is one statement, so that it needs no BEGIN and COMMIT, where that is safe."""
        return self.known_isolation == "AUTOCOMMIT" and operation not in self.composed

    @cached_property
    def composed(self) -> frozenset[Callable[..., Any]]:
        """Operations that the plugins have made more than one statement."""
        ctx, found = self.ctx, set[Callable[..., Any]]()
        if ctx.hooks.observes("runqueue_runs_finished"):
            found |= {claim.claim, settle.complete_many, settle.complete_free, maintain.reap}
        if ctx.hooks.observes("runqueue_runs_claimed") or ctx.tenants or not isinstance(ctx.store, KeepLast):
            found.add(claim.claim)
        return frozenset(found)

    def look(self, connection: Connection) -> None:
        """Check the schema and the install's rules, and say which index claims would work much better with."""
        self.isolation(connection)
        require_agreement(connection, self.ctx, state=False)
        for index in self.indexes():
            if not index_state(connection, self.ctx.t.schema, str(index.name)):
                log.warning(
                    "claims are slow without the index %s: run `runqueue migrate` with the claim policy %r and the "
                    "plugins of this worker",
                    index.name,
                    self.ctx.policy.name,
                )

    def indexes(self) -> tuple[Index, ...]:
        """Indexes that the claim policy and the plugins need, and `migrate` makes."""
        t = self.ctx.t
        return (*self.ctx.policy.indexes(t), *(x for need in self.ctx.hooks.schema(t.schema) for x in need.indexes))

    def migrations(self) -> tuple[str, ...]:
        """The version locations of plugins that have migrations of their own."""
        return tuple(x.migrations for x in self.ctx.hooks.schema(self.ctx.t.schema) if x.migrations)

    def call(self, connection: Connection, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation on a connection of ours that is in AUTOCOMMIT, under the client-side deadline."""
        with self.guard(connection):
            return operation(connection, self.ctx, *args, **kwargs)

    def call_in_transaction(
        self, connection: Connection, operation: Operation[P, T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Run an operation in a transaction of its own, the commit included in the client-side deadline."""
        with self.guard(connection), connection.begin():
            self.isolation(connection)
            return operation(connection, self.ctx, *args, **kwargs)

    def guard(self, connection: Connection) -> AbstractContextManager[None]:
        """The client-side deadline of a call on this connection."""
        return self.deadlines.guard(connection, self.ctx.settings.statement_timeout)

    def worker(self, worker_id: str) -> str:
        """Check a claimer's name; it is for operators' eyes."""
        return values.name(worker_id, field="worker_id")

    def queues(self, names: Sequence[str]) -> list[str]:
        """Check the names of the queues to claim from."""
        if isinstance(names, str):
            raise InvalidRun("queues", f"must be a list of names, not the string {names!r}")
        return list(dict.fromkeys(values.name(x, field="queues") for x in names))

    def lane(self, queue: str, kind: str | None) -> tuple[str, str]:
        """Check a queue, and a kind in it; no kind is stored as the empty string."""
        return values.name(queue, field="queue"), "" if kind is None else values.name(kind, field="kind")

    def batch(self, limit: int) -> int:
        """Check the size of a batch."""
        return values.integer(limit, field="limit", low=1, high=10_000)

    def cursor(self, cursor: UUID | str | None) -> UUID | None:
        """Check where a page starts."""
        return None if cursor is None else values.run_id(cursor, field="cursor")

    def lease(self, lease: Seconds | None) -> float:
        """The length of a lease, in seconds."""
        return self.ctx.settings.lease if lease is None else values.seconds(lease, field="lease")

    def results(self, done: Iterable[tuple[Lease, Any]]) -> list[tuple[Lease, str | None]]:
        """Encode results. Raises InvalidRun before anything is written."""
        return [(lease, None if x is None else self.encode(x, "result")) for lease, x in done]

    def encode(self, value: Any, what: Literal["result", "checkpoint", "event"]) -> str:
        """A value as JSON text, redacted where plugins do that, within the limits for what it is."""
        settings = self.ctx.settings
        limit = {
            "result": settings.result_limit,
            "checkpoint": self.ctx.store.limit,
            "event": settings.event_limit,
        }[what]
        return encode(self.ctx, value, what, field=what, limit=limit)

    def filters(
        self, tenant_id: str | None, queue: str | None, kind: str | None, status: RunStatus | str | None
    ) -> dict[str, str]:
        """The filters of `list` that were given."""
        given = {"tenant_id": tenant_id, "queue": queue, "kind": kind}
        found = {name: values.name(x, field=name) for name, x in given.items() if x is not None}
        if status is not None:
            try:
                found["status"] = RunStatus(status).value
            except ValueError:
                raise InvalidRun("status", f"must be one of {', '.join(RunStatus)}, not {status!r}") from None
        return found


def retrying() -> Retrying:
    """For a whole transaction of ours that lost a deadlock or a serialization race; never for the caller's."""
    return Retrying(retry=retry_if_exception(_lost_a_race), stop=_STOP, wait=_WAIT, reraise=True)


def async_retrying() -> AsyncRetrying:
    """The same for coroutines."""
    return AsyncRetrying(retry=retry_if_exception(_lost_a_race), stop=_STOP, wait=_WAIT, reraise=True)


_STOP = stop_after_attempt(5)
_WAIT = wait_random_exponential(multiplier=0.01, max=0.5)


def _lost_a_race(error: BaseException) -> bool:
    return isinstance(error, DBAPIError) and getattr(error.orig, "sqlstate", None) in {"40001", "40P01"}


def database_url(url: str | URL, drivername: str) -> URL:
    """A URL with our driver; what the application chose, `postgresql://` or another driver, is its own business.

    Raises InvalidRun for what is no URL of a PostgreSQL.
    """
    try:
        made = make_url(url)
    except ArgumentError as error:
        raise InvalidRun("engine", f"must be an engine or a URL: {type(url).__name__} is neither") from error
    if made.get_backend_name() not in ("postgresql", "postgres"):
        raise InvalidRun("engine", f"must be a PostgreSQL, not {made.get_backend_name()}")
    return made.set(drivername=drivername)


def of_type(value: T, kinds: tuple[type, ...], field: str) -> T:
    """Check what the application handed us. Raises InvalidRun that names what is taken, and what was given."""
    if not isinstance(value, kinds):
        wanted = " or ".join(x.__name__ for x in kinds)
        raise InvalidRun(field, f"must be {wanted}, not {type(value).__name__}")
    return value


def psycopg_engine(url: URL) -> None:
    """Check an engine of the application by its URL. Raises InvalidRun."""
    if url.get_backend_name() != "postgresql" or not url.get_driver_name().startswith("psycopg"):
        raise InvalidRun("engine", f"must be made for postgresql+psycopg, not {url.drivername}")


def connect_args(settings: Settings) -> dict[str, Any]:
    """libpq options of engines that we make ourselves."""
    return {"connect_timeout": max(1, round(settings.connect_timeout)), "application_name": "runqueue"}


def delay_of(delay: Seconds | None) -> float:
    """A delay in seconds."""
    return 0.0 if delay is None else values.seconds(delay, field="delay")
