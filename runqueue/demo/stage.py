"""What the acts stand on: the database as they see it, and waiting that keeps the fleet and the view going."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from uuid import UUID

from sqlalchemy import Engine, text

from runqueue import RunQueue, RunStatus
from runqueue.demo.fleet import Fleet
from runqueue.demo.view import Line, View
from runqueue.errors import RunqueueError

BOARD = text(
    "select id, tenant_id, kind, status, attempts, locked_by, checkpoint_seq from runqueue.agent_runs order by id"
)


class Interrupted(RunqueueError):
    """Somebody wants the demo to end."""


class TookTooLong(RunqueueError):
    """What the story waits for does not happen."""


@dataclass(frozen=True)
class Seen:
    """A run as the database has it: `worker` is the process that holds it, `steps` how often it saved a checkpoint."""

    status: RunStatus
    worker: int | None
    steps: int


@dataclass
class Stage:
    """The pieces that every act needs."""

    engine: Engine
    queue: RunQueue
    fleet: Fleet
    view: View
    interrupted: threading.Event
    deadline: float
    names: dict[UUID, str] = field(default_factory=dict)

    def look(self) -> dict[UUID, Seen]:
        """Read all runs and show them."""
        with self.engine.connect() as connection:
            rows = connection.execute(BOARD).all()
        seen, lines = {}, []
        for run_id, tenant, kind, status, attempts, locked_by, steps in rows:
            worker = int(locked_by.split(":")[-2]) if locked_by else None  # host:pid:start
            seen[run_id] = Seen(RunStatus(status), worker, steps)
            lines.append(Line(self.names[run_id], tenant, kind, status, attempts, worker, steps))
        self.view.show(lines)
        return seen

    def until(self, happened: Callable[[dict[UUID, Seen]], bool], what: str) -> dict[UUID, Seen]:
        """Look until it happened. Raises Interrupted, TookTooLong, and WorkerFailed."""
        while True:
            self.check()
            self.fleet.supervise()
            seen = self.look()
            if happened(seen):
                return seen
            if time.monotonic() > self.deadline:
                raise TookTooLong(f"the demo took too long; it waited for {what}")
            self.interrupted.wait(0.1)

    def check(self) -> None:
        """Raise Interrupted if somebody wants the demo to end."""
        if self.interrupted.is_set():
            raise Interrupted("interrupted")
