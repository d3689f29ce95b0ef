"""The control thread: it claims runs, starts their handlers, settles them, and sweeps expired leases."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Sequence

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from runqueue.errors import LeaseLost, RowLocked
from runqueue.failures import Described
from runqueue.operations.context import STOP_HINT, work_hint
from runqueue.operations.redacting import describe_error, told
from runqueue.types import ClaimedRun, Lease, Undecodable
from runqueue.worker.context import RunContext, SyncRunContext
from runqueue.worker.decide import jittered, pause_after, to_claim
from runqueue.worker.engines import Engines
from runqueue.worker.execution import Execution
from runqueue.worker.heartbeat import Heartbeats
from runqueue.worker.outcome import Cancelled, Completed, Failed, Outcome, Released, Stop
from runqueue.worker.state import State
from runqueue.worker.watchdog import Watchdog

log = logging.getLogger("runqueue.worker")

ACKNOWLEDGE_MOST = 256
"""Completions in one statement: enough to be cheap, few enough that a lost connection repeats little."""

WALK_MOST = 50
"""How many claims in a row look for a tenant with a due run before the worker waits for its next poll."""

LOCKED_PAUSE = 0.2
"""How long a run that another transaction has locked is left, in seconds, before its settlement is tried again."""


class Control:
    """One thread, one pool. Acknowledgements go first: what is ready when the last statement returned goes together."""

    def __init__(
        self,
        engines: Engines,
        state: State,
        *,
        name: str,
        queues: Sequence[str],
        kinds: Sequence[str],
        concurrency: int,
        loop: asyncio.AbstractEventLoop | None,
        until_idle: bool,
    ) -> None:
        self._db = engines.control
        self._engines = engines
        self._state = state
        self._name = name
        self._queues = list(queues)
        self._kinds = list(kinds)
        self._concurrency = concurrency
        self._loop = loop
        self._until_idle = until_idle
        self._settings = self._db.settings
        self._hints = {work_hint(queue) for queue in queues}
        self._ready: deque[tuple[Execution, Outcome | None]] = deque()
        self._locked: deque[tuple[float, Execution, Outcome | None]] = deque()
        self._wake = threading.Event()
        self._work = True
        self._failures = 0
        self._stop_by: float | None = None
        self.heartbeats = Heartbeats(engines.heartbeat, state, self._settings.abandon_after)
        self.watchdog = Watchdog(state, self._settings.abandon_after, self._finished)
        self._thread = threading.Thread(target=self._run, name="runqueue-control", daemon=True)
        self.error: BaseException | None = None
        self.ended = threading.Event()

    def start(self) -> None:
        """Start the threads."""
        self.heartbeats.start()
        self.watchdog.start()
        self._thread.start()

    def drain(self, timeout: float) -> None:
        """Claim no more; let runs finish for `timeout` seconds; then stop and release them. From any thread."""
        if self._stop_by is None:
            self._stop_by = time.monotonic() + timeout
        self._wake.set()

    def over(self, wait: float) -> bool:
        """Wait at most `wait` seconds for the end; true also when draining takes so long that the thread must hang.

        It can in connecting, which has no deadline through an engine of the application without `connect_timeout`.
        """
        grace = self._settings.abandon_after + self._settings.statement_timeout + 1.0
        late = self._stop_by is not None and time.monotonic() > self._stop_by + grace
        return self.ended.wait(0.0 if late else wait) or late

    def hint(self, payload: str) -> None:
        """A wake-up was heard. Anyone can send one, so whatever it says, it only makes us look."""
        if payload == STOP_HINT:
            self.heartbeats.soon()
        elif not payload or payload in self._hints:
            self._work = True
            self._wake.set()

    def join(self) -> None:
        """See the thread off, once it is `over`. Raises what ended it, if that was an error."""
        if not self.ended.is_set():
            log.error("a thread of the worker hangs in a call to the database, and is left behind")
            return
        self._thread.join()
        if self.error is not None:
            raise self.error

    # ------------------------------------------------------------------------------------------------- the loop

    def _run(self) -> None:
        try:
            self._loop_until_drained()
        except BaseException as error:
            log.critical("the worker's control thread failed: %s", told(self._db.core.ctx, error))
            self.error = error
        finally:
            self.heartbeats.stop()
            self.watchdog.stop()
            self.ended.set()

    def _loop_until_drained(self) -> None:
        next_poll, next_sweep = 0.0, time.monotonic() + random.uniform(0, self._settings.reap_interval)
        while True:
            now = time.monotonic()
            try:
                settled = self._settle_ready()
                if self._stop_by is None:
                    if now >= next_sweep:
                        # moved first: a sweep that fails must not keep claims from their turn
                        next_sweep = now + jittered(self._settings.reap_interval)
                        next_sweep = now + self._sweep()
                    if self._work or now >= next_poll:
                        idle = self._claim()
                        next_poll = now + jittered(self._settings.poll_interval)
                        if idle and self._until_idle and not self._state.all() and not self._ready:
                            self.drain(0)
                self._failures = 0
            except SQLAlchemyError as error:
                settled = False
                self._failed(error)
                next_poll = max(next_poll, now + pause_after(self._failures))
            if self._stop_by is not None and self._drained(now):
                return
            if not settled and not (self._work and not self._failures):
                self._wait(next_poll, next_sweep)

    def _wait(self, next_poll: float, next_sweep: float) -> None:
        now = time.monotonic()
        if self._failures:
            self._wake.wait(pause_after(self._failures))
        elif self._stop_by is not None:
            self._wake.wait(min(0.2, max(0.01, self._stop_by - now)))
        else:
            soonest = min(next_poll, next_sweep, self._locked[0][0] if self._locked else next_poll)
            self._wake.wait(max(0.0, soonest - now))
        self._wake.clear()

    def _failed(self, error: SQLAlchemyError) -> None:
        self._failures += 1
        self._state.stats.database_errors += 1
        self._work = True
        if self._failures == 1:
            log.warning("the database failed a call, trying again: %s", type(error).__name__)

    def _drained(self, now: float) -> bool:
        assert self._stop_by is not None
        remaining = self._state.all()
        if not remaining and not self._ready:
            return True
        if now < self._stop_by:
            return False
        for execution in remaining:
            if execution.tell(Stop.DRAIN, force_in=0.0, abandon_in=self._settings.abandon_after):
                self.watchdog.look()
        # the grace is for handlers to clean up, then for their releases to be written, with the database down too
        if now < self._stop_by + self._settings.abandon_after + self._settings.statement_timeout:
            return False
        log.error("giving up %d runs that could not be settled; their leases will expire", len(remaining))
        for execution in remaining:  # a worker that is started again must not go on renewing them
            execution.tell(Stop.LOST, force_in=0.0, abandon_in=0.0)
            self._settled(execution, "lease_lost")
        return True

    # -------------------------------------------------------------------------------------------------- claiming

    def _claim(self) -> bool:
        """Claim what there is room for and start it; return whether there was room, but nothing to do."""
        wanted = to_claim(self._concurrency, self._state.busy(), len(self._ready) + len(self._locked))
        self._work = False
        if not wanted:
            return False
        sent = time.monotonic()
        claimed = self._db.claim(self._name, queues=self._queues, limit=wanted, kinds=self._kinds)
        self._work = self._work or len(claimed) == wanted or self._is_not_done(len(claimed))
        for one in claimed:
            self._start(one, sent)
        if claimed:
            self.watchdog.look()
        return not claimed

    def _is_not_done(self, claimed: int) -> bool:
        """Whether there may be more, though a claim took less than it could: some tenants had less than their turn."""
        ctx = self._db.core.ctx
        return ctx.tenants is not None and (claimed > 0 or 0 < ctx.walks.fruitless <= WALK_MOST)

    def _start(self, claimed: ClaimedRun, sent: float) -> None:
        self._state.stats.claimed += 1
        execution = Execution(self._db.core, claimed, self._db.core.handlers[claimed.run.kind], sent)
        if self._state.is_stuck(claimed.run.id):
            self._refuse(execution, Released(self._settings.lease, "an earlier attempt still runs here"))
            return
        stored = {"input": claimed.run.input, "budget": claimed.run.budget, "checkpoint": claimed.checkpoint}
        for what, value in stored.items():
            if isinstance(value, Undecodable):
                reason = Described("undecodable", f"the {what} cannot be read: {value.reason}")
                self._refuse(execution, Failed(reason, retry=False))
                return
        self._state.add(execution)
        done = lambda outcome: self._ended(execution, outcome)  # noqa: E731
        function = execution.spec.function
        if execution.is_async:
            assert self._loop is not None
            context = RunContext(execution, self._engines.async_handlers, self._loop)
            execution.start_task(self._loop, lambda: function(context), done)
        else:
            sync_context = SyncRunContext(execution, self._engines.handlers)
            try:
                execution.start_thread(lambda: function(sync_context), done)
            except RuntimeError:  # the process may have no more threads: no reason to end all other runs too
                log.exception("run %s could not be started, giving it back", claimed.run.id)
                self._refuse(execution, Released(self._settings.lease, "the worker could not start a thread"))

    def _refuse(self, execution: Execution, outcome: Outcome) -> None:
        """Settle a run without starting its handler."""
        execution.claim_settlement()
        execution.ended.set()
        self._state.add(execution)
        self._finished(execution, outcome)

    def _ended(self, execution: Execution, outcome: Outcome | None) -> None:
        if execution.claim_settlement():
            self._finished(execution, outcome)
        else:
            self._work = True  # a slot came back
            self._wake.set()

    def _finished(self, execution: Execution, outcome: Outcome | None) -> None:
        self._ready.append((execution, outcome))
        self._wake.set()

    # -------------------------------------------------------------------------------------------------- settling

    def _settle_ready(self) -> bool:
        """Write what is ready; return whether there was anything."""
        while self._locked and self._locked[0][0] <= time.monotonic():
            self._ready.append(self._locked.popleft()[1:])
        batch = [self._ready.popleft() for _ in range(min(len(self._ready), ACKNOWLEDGE_MOST))]
        if not batch:
            return False
        try:
            self._complete([x for x in batch if isinstance(x[1], Completed)])
            for execution, outcome in batch:
                if not isinstance(outcome, Completed):
                    self._settle(execution, outcome)
        except SQLAlchemyError:
            # nothing is dropped: what is not settled yet is tried again, and repeating is harmless
            locked = {id(x) for _, x, _ in self._locked}
            self._ready.extendleft(x for x in reversed(batch) if self._is_held(x[0]) and id(x[0]) not in locked)
            raise
        self._work = True
        return True

    def _complete(self, done: Sequence[tuple[Execution, Outcome | None]]) -> None:
        if not done:
            return
        results = [(x.lease, outcome.result) for x, outcome in done if isinstance(outcome, Completed)]
        try:
            lost, locked = self._db.complete_encoded(results)
        except DBAPIError as error:
            if len(done) == 1 and _is_fault_of_data(error):
                self._settle(done[0][0], Failed(describe_error(self._db.core.ctx, error)))
                return
            if not _is_fault_of_data(error):
                raise
            for one in done:
                self._complete([one])
            return
        gone, busy = set(lost), set(locked)
        for (lease, _), (execution, outcome) in zip(results, done, strict=True):
            if lease in busy:
                self._leave(execution, outcome)
            else:
                self._settled(execution, "lease_lost" if lease in gone else "completed")

    def _leave(self, execution: Execution, outcome: Outcome | None) -> None:
        """Another transaction has the run locked: no reason to keep all others waiting."""
        self._locked.append((time.monotonic() + LOCKED_PAUSE, execution, outcome))

    def _settle(self, execution: Execution, outcome: Outcome | None) -> None:
        lease, db = execution.lease, self._db
        if outcome is None:
            self._settled(execution, "lease_lost")
            return
        try:
            match outcome:
                case Failed(error, retry, delay):
                    self._fail(lease, error, retry, delay)
                    self._settled(execution, "failed")
                case Released(delay, reason):
                    db.release(lease, delay=delay, reason=reason)
                    self._settled(execution, "released")
                case Cancelled():
                    db.settle_cancelled(lease)
                    self._settled(execution, "cancelled")
        except LeaseLost:
            self._settled(execution, "lease_lost")
        except RowLocked:
            self._leave(execution, outcome)
        except DBAPIError as error:
            if not _is_fault_of_data(error):
                raise
            # this one cannot be written, whatever is tried: its lease will expire, and the others go on
            log.error("run %s could not be settled: %s", execution.claimed.run.id, type(error.orig).__name__)
            self._settled(execution, "lease_lost")

    def _fail(self, lease: Lease, error: Described, retry: bool, delay: float | None) -> None:
        try:
            self._db.fail_described(lease, error, retry=retry, delay=delay)
        except (LeaseLost, RowLocked, SQLAlchemyError):
            raise
        except BaseException as wrong:
            # whatever a plugin that decides the delay raises, the run must be settled all the same
            log.error("the retry policy failed; the run waits for the cap: %s", told(self._db.core.ctx, wrong))
            self._db.fail_described(lease, error, retry=retry, delay=self._settings.retry_cap)

    def _settled(self, execution: Execution, what: str) -> None:
        self._state.remove(execution)
        stats = self._state.stats
        setattr(stats, what, getattr(stats, what) + 1)
        if what == "lease_lost":
            log.warning(
                "lost the lease of run %s, attempt %d", execution.claimed.run.id, execution.claimed.run.attempts
            )

    def _is_held(self, execution: Execution) -> bool:
        return self._state.executions.get(execution.claimed.run.id) is execution

    # -------------------------------------------------------------------------------------------------- sweeping

    def _sweep(self) -> float:
        """Sweep expired leases; return the seconds until the next time."""
        reaped = self._db.reap()
        self._state.stats.reaped += reaped.total
        if reaped.pending:
            self._work = True
        full = reaped.total >= self._settings.reap_limit
        return 0.0 if full else jittered(self._settings.reap_interval)


def _is_fault_of_data(error: DBAPIError) -> bool:
    state = getattr(error.orig, "sqlstate", None) or ""
    return not error.connection_invalidated and state[:2] in {"22", "23", "54", "P0"}
