"""The thread that watches the time and never waits for the database: local lease deadlines, timeouts, grace periods."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from runqueue.worker.execution import Execution
from runqueue.worker.outcome import Outcome, Stop
from runqueue.worker.state import State

log = logging.getLogger("runqueue.worker")

TICK = 0.05
"""How late a deadline may be noticed, in seconds."""


class Watchdog:
    """Tells handlers to stop, cancels them, and in the end gives them up."""

    def __init__(self, state: State, abandon_after: float, settle: Callable[[Execution, Outcome | None], None]) -> None:
        self._state = state
        self._abandon_after = abandon_after
        self._settle = settle
        self._changed = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="runqueue-watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stopping = True
        self._changed.set()
        self._thread.join(5)

    def look(self) -> None:
        """Something changed: a run was claimed, or a handler was told to stop."""
        self._changed.set()

    def _run(self) -> None:
        while not self._stopping:
            now = time.monotonic()
            soonest: float | None = None
            for execution in self._state.all():
                due = None if execution.ended.is_set() else execution.next_step()
                if due is not None and due <= now:
                    self._try(execution, now)
                    due = execution.next_step()
                if due is not None:
                    soonest = due if soonest is None else min(soonest, due)
            # deadlines move without a word when a heartbeat is accepted, only ever to later
            self._changed.wait(None if soonest is None else max(TICK, min(soonest - now, 1.0)))
            self._changed.clear()

    def _try(self, execution: Execution, now: float) -> None:
        try:
            self._act(execution, now)
        except Exception:  # one run's fault must not leave the others without a watch
            log.exception("run %s could not be stopped, trying again", execution.claimed.run.id)

    def _act(self, execution: Execution, now: float) -> None:
        spec = execution.spec
        if execution.stop is None or (not execution.lost and execution.stop_by <= now):
            if execution.stop_by <= now:
                execution.tell(Stop.LOST, force_in=0.0, abandon_in=self._abandon_after)
            else:
                execution.tell(Stop.TIMEOUT, force_in=0.0, abandon_in=spec.cancel_grace)
        elif execution.force_at is not None and execution.force_at <= now and not execution.forced:
            execution.force()
        elif execution.claim_settlement():
            self._settle(execution, execution.give_up())
