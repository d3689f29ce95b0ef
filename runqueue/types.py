"""The plain data that passes between the floors of the library. Standard library only."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

Seconds = float | timedelta


class Keep(enum.Enum):
    """Stands for what is to stay as it is, where None has a meaning of its own."""

    KEEP = "keep"


KEEP = Keep.KEEP


class RunStatus(enum.StrEnum):
    """The state of a run, as stored."""

    PENDING = "pending"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Whether the run has ended."""
        return self in TERMINAL


TERMINAL = frozenset({RunStatus.DONE, RunStatus.DEAD, RunStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Undecodable:
    """Stands for a stored JSON value that Python cannot read."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run as the database had it when it was read. Times are aware; `attempts` counts leases not given back.

    `leased_at` is when its last lease began. `spent` is what its handlers reported, in the application's own unit.
    """

    id: UUID
    tenant_id: str
    queue: str
    kind: str
    status: RunStatus
    priority: int
    attempts: int
    max_attempts: int
    available_at: datetime
    locked_until: datetime | None
    locked_by: str | None
    fencing_token: int
    cancel_requested_at: datetime | None
    cancel_reason: str | None
    budget: Any
    input: Any
    result: Any
    error_code: str | None
    error_message: str | None
    idempotency_key: str | None
    parent_id: UUID | None
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None
    leased_at: datetime | None
    spent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """What `enqueue_many` takes: the arguments of `enqueue`, as one value."""

    kind: str
    input: Any = None
    tenant_id: str
    queue: str = "default"
    priority: int = 0
    delay: Seconds | None = None
    available_at: datetime | None = None
    max_attempts: int | None = None
    budget: Any = None
    idempotency_key: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to write for one run. It is held while `fencing_token` is the newest one and the run is leased."""

    run_id: UUID
    fencing_token: int
    locked_until: datetime = field(compare=False)


@dataclass(frozen=True, slots=True)
class ClaimedRun:
    """A run and the lease under which it was claimed. `time_left` is the lease's length in seconds, at the claim."""

    run: Run
    lease: Lease
    time_left: float
    checkpoint: Any = None


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What became of one lease in a heartbeat.

    `renewed`: the lease was extended. Not renewed and not `lost`: another transaction held the row; ask again.
    `time_left`: seconds from the database's clock to the end of the lease, 0 where it is lost.
    """

    lease: Lease
    renewed: bool
    lost: bool
    cancel_requested: bool
    time_left: float


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of a run's stream: `seq` is 1, 2, 3 … without a gap, in commit order."""

    run_id: UUID
    seq: int
    type: str
    data: Any
    created_at: datetime


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one sweep did: how many runs went back to pending, died, were cancelled, or could not be moved."""

    pending: int = 0
    dead: int = 0
    cancelled: int = 0
    failed: int = 0

    @property
    def total(self) -> int:
        """Runs that were moved."""
        return self.pending + self.dead + self.cancelled


@dataclass(frozen=True, slots=True)
class Page:
    """A page of `list`; pass `cursor` to get the next one. `cursor` is None on the last page."""

    runs: tuple[Run, ...]
    cursor: UUID | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a run is where it is: `rule` is a fixed word, `detail` a sentence for people."""

    run_id: UUID
    status: RunStatus
    rule: str
    detail: str


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Counts of one queue and kind. `oldest_due` is how long, in seconds, the oldest claimable run has waited."""

    queue: str
    kind: str
    pending: int
    due: int
    leased: int
    done: int
    dead: int
    cancelled: int
    oldest_due: float | None
