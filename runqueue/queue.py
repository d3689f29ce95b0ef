"""The queue for sync code: each method is one operation, in a transaction of its own or in the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar
from uuid import UUID

from sqlalchemy import URL, Connection, Engine, create_engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from runqueue import values
from runqueue.core import Core, Handler, connect_args, database_url, delay_of, of_type, psycopg_engine, retrying
from runqueue.decisions import PluginInfo, Tenant
from runqueue.errors import LeaseLost, RunNotFound, Timeout
from runqueue.failures import Described
from runqueue.operations import claim, inspect, maintain, produce, redacting, rules, settle
from runqueue.operations.context import Context
from runqueue.policies import ClaimPolicy
from runqueue.settings import Settings
from runqueue.transactions import Pending, Transaction
from runqueue.types import (
    KEEP,
    ClaimedRun,
    Event,
    Explanation,
    Heartbeat,
    Keep,
    Lease,
    NewRun,
    Page,
    QueueStats,
    Reaped,
    Run,
    RunStatus,
    Seconds,
)
from runqueue.watch import Watcher, ended, news_after

P = ParamSpec("P")
T = TypeVar("T")
Operation = Callable[Concatenate[Connection, Context, P], T]


class RunQueue:
    """A queue on a sync engine. Safe to share between threads; builds no connection until it is used.

    Methods that take `connection` run in that transaction and never commit it; without, in one of their own, at READ
    COMMITTED, under a client-side deadline. Raises SchemaOutdated at first use where the schema is missing or old.
    """

    def __init__(
        self,
        engine: Engine | str | URL,
        *,
        schema: str = "runqueue",
        claim: str | ClaimPolicy = "reaper",
        plugins: Sequence[str | object] = (),
        plugin_options: Mapping[str, Mapping[str, Any]] | None = None,
        without: Sequence[str] = (),
        settings: Settings | None = None,
    ) -> None:
        core = Core.build(schema, claim, plugins, settings, plugin_options, without)
        of_type(engine, (Engine, str, URL), "engine")
        made = not isinstance(engine, Engine)
        if isinstance(engine, Engine):
            psycopg_engine(engine.url)
        else:
            engine = self._engine(engine, core.ctx.settings)
        self._set(core, engine)
        self._owns_engine = made

    @classmethod
    def over(cls, core: Core, engine: Engine) -> RunQueue:
        """Another face of an install whose rules are settled, on another engine."""
        queue = cls.__new__(cls)
        queue._set(core, engine)
        return queue

    def _set(self, core: Core, engine: Engine) -> None:
        self.core = core
        self.settings = core.ctx.settings
        self.schema = core.ctx.t.schema
        self.engine = engine
        self._owns_engine = False
        self._watcher = Watcher(lambda ids: self._run(inspect.watch, ids), self.settings.watch_interval)

    @staticmethod
    def _engine(url: str | URL, settings: Settings) -> Engine:
        return create_engine(
            database_url(url, "postgresql+psycopg"), connect_args=connect_args(settings), hide_parameters=True
        )

    def handler(
        self,
        kind: str,
        *,
        timeout: Seconds | None = None,
        on_lost: Literal["retry", "fail"] = "retry",
        cancel_grace: Seconds | None = None,
    ) -> Callable[[Handler], Handler]:
        """Register the function that runs a kind, `async def` or `def`; it is called with a RunContext.

        `timeout` ends an attempt, as failed, after so many seconds; `on_lost="fail"` says that a run whose worker was
        lost must not be tried again; `cancel_grace` replaces the setting.
        """
        return self.core.register(kind, timeout=timeout, on_lost=on_lost, cancel_grace=cancel_grace)

    # ------------------------------------------------------------------------------------------------- producers

    def enqueue(
        self,
        kind: str,
        input: Any = None,
        *,
        tenant_id: str,
        queue: str = "default",
        priority: int = 0,
        delay: Seconds | None = None,
        available_at: datetime | None = None,
        max_attempts: int | None = None,
        budget: Any = None,
        idempotency_key: str | None = None,
        connection: Connection | Session | None = None,
    ) -> Run:
        """Store a run. A used (tenant, kind, idempotency key) gives back the run that has it.

        Raises InvalidRun, and IdempotencyConflict for a used key with another input.
        """
        new = NewRun(
            kind=kind,
            input=input,
            tenant_id=tenant_id,
            queue=queue,
            priority=priority,
            delay=delay,
            available_at=available_at,
            max_attempts=max_attempts,
            budget=budget,
            idempotency_key=idempotency_key,
        )
        return self.enqueue_many([new], connection=connection)[0]

    def enqueue_many(self, runs: Iterable[NewRun], *, connection: Connection | Session | None = None) -> list[Run]:
        """Store any number of runs, all or none; return them in order. Raises as `enqueue`."""
        return self._in(connection, produce.enqueue_many, list(runs))

    # --------------------------------------------------------------------------------------------------- workers

    def claim(
        self,
        worker_id: str,
        *,
        queues: Sequence[str] = ("default",),
        limit: int = 1,
        kinds: Iterable[str] | None = None,
        lease: Seconds | None = None,
    ) -> list[ClaimedRun]:
        """Lease at most `limit` due runs, in the claim order. `lease` is the length, by default the setting's.

        Fewer than `limit` does not mean that there are no more: rows that others have locked are skipped.
        """
        core = self.core
        return self._single(
            claim.claim,
            core.worker(worker_id),
            core.queues(queues),
            core.batch(limit),
            core.kinds(kinds),
            core.lease(lease),
        )

    def heartbeat(self, leases: Sequence[Lease], *, lease: Seconds | None = None) -> list[Heartbeat]:
        """Renew the leases, with one statement; say of each, in order, whether it is renewed, lost, asked to stop."""
        return self._single(claim.heartbeat, list(leases), self.core.lease(lease))

    def complete(self, lease: Lease, result: Any = None) -> None:
        """End the run as done. To repeat it after a lost answer is a success. Raises LeaseLost, InvalidRun."""
        self.complete_many([(lease, result)])

    def complete_many(self, done: Iterable[tuple[Lease, Any]]) -> None:
        """End the runs as done, with one statement. Raises LeaseLost with the lost leases, the others being done."""
        lost = self._single(settle.complete_many, self.core.results(done))
        if lost:
            raise LeaseLost(lost)

    def complete_encoded(self, done: Sequence[tuple[Lease, str | None]]) -> tuple[Sequence[Lease], Sequence[Lease]]:
        """`complete_many` for results that are JSON texts, without waiting; return the lost and the locked leases."""
        return self._single(settle.complete_free, done)

    def fail(
        self, lease: Lease, error: BaseException | str, *, retry: bool = True, delay: Seconds | None = None
    ) -> Run:
        """End the attempt as failed: pending after a delay, or dead, or cancelled where that was requested.

        The delay is the retry policy's unless given; `retry=False` makes the error final. Raises LeaseLost.
        """
        return self.fail_described(lease, redacting.describe_error(self.core.ctx, error), retry=retry, delay=delay)

    def fail_described(
        self, lease: Lease, error: Described, *, retry: bool = True, delay: Seconds | None = None
    ) -> Run:
        """`fail` for a code and text that may be stored as they are."""
        wait = None if delay is None else delay_of(delay)
        return self._run(settle.fail, lease, error, retry, wait)

    def release(self, lease: Lease, *, delay: Seconds | None = None, reason: str = "released") -> Run:
        """Give the run back unharmed; the attempt is not charged. Raises LeaseLost."""
        return self._run(settle.release, lease, delay_of(delay), reason)

    def settle_cancelled(self, lease: Lease) -> Run:
        """End the run as cancelled, once its handler has stopped. Raises LeaseLost."""
        return self._run(settle.settle_cancelled, lease)

    def reap(self, limit: int | None = None) -> Reaped:
        """Move at most `limit` runs whose lease has expired: to pending, dead or cancelled."""
        batch = self.core.batch(self.settings.reap_limit if limit is None else limit)
        try:
            return self._single(maintain.reap, batch)
        except DBAPIError as error:
            if not maintain.row_fault(error):
                raise
        return self._run(maintain.reap_one_by_one, batch)

    @contextmanager
    def transaction(self, lease: Lease) -> Iterator[Transaction]:
        """A transaction that commits only while the lease is the newest. Raises LeaseLost at its end, rolled back."""
        pending = Pending(self.core, lease)
        with self._connect("READ COMMITTED") as connection:
            pending.begin(connection)
            try:
                yield Transaction(connection, pending)
            except BaseException:
                pending.roll_back(connection)
                raise
            pending.commit(connection)

    # ---------------------------------------------------------------------------------------- control and reading

    def cancel(
        self,
        run_id: UUID | str,
        reason: str | None = None,
        *,
        tenant_id: str | None = None,
        connection: Connection | Session | None = None,
    ) -> Run:
        """Cancel a pending run at once; ask a leased one to stop; one that has ended is returned as it is.

        Raises RunNotFound, also for a run of another tenant than `tenant_id`.
        """
        return self._in(connection, inspect.cancel, run_id, reason, tenant_id)

    def retry(
        self,
        run_id: UUID | str,
        *,
        delay: Seconds | None = None,
        tenant_id: str | None = None,
        connection: Connection | Session | None = None,
    ) -> Run:
        """Make a dead or cancelled run pending again, with all its attempts; any other is returned as it is."""
        return self._in(connection, inspect.retry, run_id, delay_of(delay), tenant_id)

    def get(
        self, run_id: UUID | str, *, tenant_id: str | None = None, connection: Connection | Session | None = None
    ) -> Run:
        """The run. Raises RunNotFound."""
        return self._in(connection, inspect.get, run_id, tenant_id)

    def list(
        self,
        *,
        tenant_id: str | None = None,
        queue: str | None = None,
        kind: str | None = None,
        status: RunStatus | str | None = None,
        limit: int = 50,
        cursor: UUID | str | None = None,
    ) -> Page:
        """Runs that match, newest first, a page at a time."""
        filters = self.core.filters(tenant_id, queue, kind, status)
        return self._run(inspect.list_runs, filters, self.core.batch(limit), self.core.cursor(cursor))

    def events(
        self, run_id: UUID | str, after: int = 0, *, limit: int = 1000, tenant_id: str | None = None
    ) -> Sequence[Event]:
        """The run's events numbered after+1, after+2, … that are committed, at most `limit`. Raises RunNotFound."""
        return self._run(inspect.events, run_id, after, self.core.batch(limit), tenant_id)

    def follow(self, run_id: UUID | str, after: int = 0, *, timeout: Seconds | None = None) -> Iterator[Event]:
        """Yield events as they are committed, until the run has ended and all were given; holds no connection.

        Raises RunNotFound, and Timeout when nothing new came for `timeout` seconds.
        """
        over = False
        while True:
            for event in (batch := self.events(run_id, after)):
                after = event.seq
                yield event
            if over and not batch:
                return
            over = self._await(run_id, news_after(after), timeout).terminal

    def wait(self, run_id: UUID | str, timeout: Seconds | None = None) -> Run:
        """Block until the run has ended, and return it; holds no connection. Raises Timeout and RunNotFound."""
        self._await(run_id, ended, timeout)
        return self.get(run_id)

    def stats(self) -> Sequence[QueueStats]:
        """Counts of runs that are not archived, by queue and kind. Reads the whole hot table."""
        return self._run(inspect.stats)

    def explain(self, run_id: UUID | str, *, tenant_id: str | None = None) -> Explanation:
        """Which rule holds the run where it is. Raises RunNotFound."""
        return self._run(inspect.explain, run_id, tenant_id)

    def pause(self, queue: str = "default", kind: str | None = None, *, reason: str | None = None) -> None:
        """Stop claims of the queue, or of one kind in it, in all workers; running runs go on."""
        self._run(inspect.pause, *self.core.lane(queue, kind), reason)

    def resume(self, queue: str = "default", kind: str | None = None) -> None:
        """Undo `pause`."""
        self._run(inspect.resume, *self.core.lane(queue, kind))

    def rules(self) -> dict[str, Any]:
        """The rules of the install that were set, by name: who orders and shares, and what its plugins read."""
        return self._run(rules.rules)

    def set_rule(self, name: str, value: Any) -> None:
        """Set a rule of the install; None removes it, and the default counts.

        What plugins read counts for claims within half a second. `claim_order` and `tenant_policy` name the plugin that
        all who claim must use: stop the workers, set the rule, and start them with that plugin. Raises InvalidRun, also
        for a rule that no plugin of this queue reads.
        """
        self._run(rules.set_rule, name, value)

    def tenants(self, *, after: str = "", limit: int = 1000) -> Sequence[Tenant]:
        """Tenants that have runs in flight, or a weight, a cap or a usage, by name; `after` goes on after that name.

        Reads all leased runs.
        """
        return self._run(rules.tenants, after, self.core.batch(limit))

    def tenant(self, tenant_id: str) -> Tenant:
        """One tenant, also where nothing was ever set for it. Raises InvalidRun for what is no name."""
        return self._run(rules.tenant, tenant_id)

    def set_tenant(self, tenant_id: str, *, weight: float | Keep | None = KEEP, cap: int | Keep | None = KEEP) -> None:
        """Set a tenant's share, its most runs in flight, or both. What is not given stays as it is.

        A lower cap counts from the next claim on; the rest within half a second, for which turns are looked up ahead.
        `weight` is from 0.01 to 1000: with twice the weight it gets twice the runs. `cap` is 0 or more; runs in flight
        beyond a lower one go on. None stands for the default of the tenant policy. Raises InvalidRun.
        """
        self._run(rules.set_tenant, tenant_id, weight, cap)

    def plugins(self) -> Sequence[PluginInfo]:
        """The plugins of this queue in their order, the defaults first. Touches no database."""
        return self.core.ctx.hooks.plugins()

    def check(self) -> None:
        """Reach the database and look at the schema. Raises SchemaOutdated."""
        with self._connect("AUTOCOMMIT") as connection:
            self.core.call(connection, lambda c, _: self.core.look(c))

    def close(self) -> None:
        """Let go of the database: of the engine too, if it was made here from a URL. The queue can still be used."""
        self._watcher.join(self.settings.statement_timeout)
        if self._owns_engine:
            self.engine.dispose()

    # ------------------------------------------------------------------------------------------------ transactions

    def _connect(self, isolation: Literal["AUTOCOMMIT", "READ COMMITTED"]) -> Connection:
        return self.engine.connect().execution_options(isolation_level=isolation)

    def _run(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def once() -> T:
            with self._connect("READ COMMITTED") as connection:
                return self.core.call_in_transaction(connection, operation, *args, **kwargs)

        return retrying()(once)

    def _single(self, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run an operation that is one statement, without BEGIN and COMMIT where that is safe."""
        if not self.core.is_single(operation):
            return self._run(operation, *args, **kwargs)

        def once() -> T:
            with self._connect("AUTOCOMMIT") as connection:
                return self.core.call(connection, operation, *args, **kwargs)

        return retrying()(once)

    def _in(
        self, given: Connection | Session | None, operation: Operation[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if given is None:
            return self._run(operation, *args, **kwargs)
        connection = (
            given.connection() if isinstance(given, Session) else of_type(given, (Connection, Session), "connection")
        )
        self.core.isolation(connection)
        return operation(connection, self.core.ctx, *args, **kwargs)

    def _await(
        self, run_id: UUID | str, done: Callable[[tuple[RunStatus, int]], bool], timeout: Seconds | None
    ) -> RunStatus:
        wanted = values.run_id(run_id)
        seen: dict[str, RunStatus] = {}

        def look(state: tuple[RunStatus, int] | None) -> bool:
            if state is None:
                raise RunNotFound(wanted)
            seen["status"] = state[0]
            return done(state)

        limit = None if timeout is None else delay_of(timeout)
        if limit == 0:  # there is no time for the watcher's next look: ask once
            done_now = look(self._run(inspect.watch, [wanted]).get(wanted))
        else:
            done_now = self._watcher.wait(wanted, look, limit)
        if not done_now:
            raise Timeout(f"run {run_id}: nothing new within {timeout} s")
        return seen["status"]
