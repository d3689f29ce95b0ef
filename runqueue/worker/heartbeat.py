"""The thread that renews all leases of the worker with one statement, on a connection of its own."""

from __future__ import annotations

import logging
import threading
import time

from sqlalchemy.exc import SQLAlchemyError

from runqueue.queue import RunQueue
from runqueue.types import Heartbeat
from runqueue.worker.decide import pause_after
from runqueue.worker.execution import Execution
from runqueue.worker.outcome import Stop
from runqueue.worker.state import State

log = logging.getLogger("runqueue.worker")


class Heartbeats:
    """A heartbeat that fails is unknown, not lost: it is tried again, and until then the local deadlines rule."""

    def __init__(self, queue: RunQueue, state: State, abandon_after: float) -> None:
        self._queue = queue
        self._state = state
        self._abandon_after = abandon_after
        self._now = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="runqueue-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread once its call has returned."""
        self._stopping.set()
        self._now.set()
        self._thread.join(self._queue.settings.statement_timeout + 1)

    def soon(self) -> None:
        """Renew now, and so hear of cancels now."""
        self._now.set()

    def _run(self) -> None:
        settings = self._queue.settings
        failures, again = 0, False
        while not self._stopping.is_set():
            pause = settings.heartbeat
            if failures:
                pause = min(settings.heartbeat, pause_after(failures))
            elif again:
                pause = min(settings.heartbeat, 0.5)
            asked = self._now.wait(pause)
            self._now.clear()
            if self._stopping.is_set():
                return
            try:
                again = self._renew()
                failures = 0
            except Exception as error:
                failures += 1
                self._state.stats.database_errors += 1
                if failures == 1:
                    unforeseen = not isinstance(error, SQLAlchemyError)
                    log.warning("a heartbeat failed, trying again: %s", type(error).__name__, exc_info=unforeseen)
            if asked:
                self._stopping.wait(0.05)  # many wake-ups at once are one

    def _renew(self) -> bool:
        """Renew all leases; return whether some row was locked by another transaction and must be asked for again."""
        held = self._state.held()
        if not held:
            return False
        sent = time.monotonic()
        answers = self._queue.heartbeat([x.lease for x in held])
        unknown = [self._take(execution, answer, sent) for execution, answer in zip(held, answers, strict=True)]
        return any(unknown)

    def _take(self, execution: Execution, answer: Heartbeat, sent: float) -> bool:
        grace = execution.spec.cancel_grace
        if answer.renewed:
            execution.renewed(answer.lease, sent, answer.time_left)
        elif answer.lost and not execution.ended.is_set():
            # one that has ended is being settled, perhaps just now: the settlement says what became of it
            execution.tell(Stop.LOST, force_in=0.0, abandon_in=self._abandon_after)
        if answer.cancel_requested and not execution.ended.is_set():
            execution.tell(Stop.CANCEL, force_in=grace, abandon_in=self._abandon_after)
        return not answer.renewed and not answer.lost
