"""What the threads of a worker share."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from dataclasses import dataclass, field
from uuid import UUID

from runqueue.worker.execution import Execution


@dataclass
class WorkerStats:
    """Counters of one worker since its start, and what it sees now."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    released: int = 0
    cancelled: int = 0
    lease_lost: int = 0
    reaped: int = 0
    database_errors: int = 0
    running: int = 0
    stuck_threads: int = 0
    listener_up: bool = False
    plugin_errors: dict[str, int] = field(default_factory=dict)
    """Exceptions of observers, by plugin: they failed nothing else."""


def worker_name() -> str:
    """`host:pid:start id`: another one at each start, for a restarted container has the same host and pid."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:12]}"


@dataclass
class State:
    """The runs in this worker's hands, behind one lock that is never held during a database call."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    executions: dict[UUID, Execution] = field(default_factory=dict)
    stuck: dict[UUID, Execution] = field(default_factory=dict)
    stats: WorkerStats = field(default_factory=WorkerStats)

    def add(self, execution: Execution) -> None:
        """A run was claimed."""
        with self.lock:
            self.executions[execution.claimed.run.id] = execution

    def remove(self, execution: Execution) -> None:
        """The run is settled, or lost. A thread that still runs keeps its slot until it ends."""
        run_id = execution.claimed.run.id
        with self.lock:
            if self.executions.get(run_id) is execution:
                del self.executions[run_id]
            if not execution.ended.is_set() and not execution.is_async:
                self.stuck[run_id] = execution

    def held(self) -> list[Execution]:
        """Runs whose leases are to be renewed."""
        with self.lock:
            return [x for x in self.executions.values() if not x.lost]

    def all(self) -> list[Execution]:
        """Runs that the watchdog looks after."""
        with self.lock:
            return list(self.executions.values())

    def busy(self) -> int:
        """Slots in use: handlers that have not ended, given-up threads among them."""
        with self.lock:
            self.stuck = {run_id: x for run_id, x in self.stuck.items() if not x.ended.is_set()}
            running = sum(not x.ended.is_set() for x in self.executions.values())
            self.stats.running, self.stats.stuck_threads = running, len(self.stuck)
            return running + len(self.stuck)

    def is_stuck(self, run_id: UUID) -> bool:
        """Whether an earlier attempt of this run still has a thread here."""
        with self.lock:
            return run_id in self.stuck
