"""What deciding plugins are asked, and what they answer: plain values, from which statements are composed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol, runtime_checkable
from uuid import UUID

from sqlalchemy import Column, ColumnElement, Connection, Index

from runqueue.types import Lease


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """An order that an index can serve.

    `terms` are columns of `agent_runs`, ascending. `level`, where given, comes before them, descending: its distinct
    values are stepped through one by one, so that within a level the runs that are not due yet, a range of
    `available_at`, are never read. An index must have (queue, kind, level, *terms) of the pending runs.

    `step` makes waiting count: so many seconds of it weigh as much as one level. The heads of all levels are then
    merged by `available_at - level * step`, and the first of `terms` must be `available_at`.
    """

    terms: tuple[Column[Any], ...]
    level: Column[Any] | None = None
    step: ColumnElement[float] | None = None


@dataclass(frozen=True, slots=True)
class TenantPolicy:
    """How tenants share the workers. Each is an expression over the row of `agent_run_tenants`, all NULL where the
    tenant has none, and its `tenant_id`.

    `weight`: the share, greater than 0; twice the weight gets twice the runs. `cap`: at most so many runs in flight,
    NULL for no cap. `usage`: what a tenant has had; where given, who has had least for its weight is served first, what
    is in flight being counted with `cost`, what a run of the tenant usually takes.
    """

    weight: ColumnElement[Any]
    cap: ColumnElement[Any] | None = None
    usage: ColumnElement[Any] | None = None
    cost: ColumnElement[Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failed attempt that may be tried again.

    `attempts` counts this one. `error` is the exception, None where only its text is known. `age` is the seconds since
    the run was enqueued.
    """

    kind: str
    tenant_id: str
    attempts: int
    max_attempts: int
    error: BaseException | None
    error_code: str
    error_message: str
    age: float


@dataclass(frozen=True, slots=True)
class RetryDelay:
    """Try again after so many seconds, `math.inf` for never; `reason` is recorded with the failure."""

    seconds: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class KeepLast:
    """Checkpoints in the library's own table, written by the statement that checks the fence: the last `count` of a
    run, each at most `limit` bytes of JSON."""

    count: int
    limit: int


@runtime_checkable
class CheckpointStore(Protocol):
    """Checkpoints kept elsewhere. States are JSON texts."""

    limit: int
    """How many bytes a state may have."""

    def save(self, connection: Connection, lease: Lease, state: str) -> None:
        """Keep a state. Called in the fenced transaction, before the fence: what it writes commits with it or never."""

    def load(self, connection: Connection, run_ids: Sequence[UUID]) -> Mapping[UUID, str]:
        """The newest state of each of these runs that has one. Called in the claim's transaction, after the claim."""


@dataclass(frozen=True, slots=True)
class PluginSchema:
    """What a plugin needs in the database, made by `runqueue migrate` with the plugin named.

    `indexes` are made concurrently. `migrations` is an alembic version location (`"package:folder"`) with a branch
    label of its own, whose first revision depends on `rq0001`.
    """

    indexes: tuple[Index, ...] = ()
    migrations: str | None = None


@dataclass(frozen=True, slots=True)
class Tenant:
    """A tenant as `tenants()` tells of it. `cap` and `weight` are None where the policy's default counts."""

    tenant_id: str
    weight: float | None
    cap: int | None
    in_flight: int
    usage: float
    used_at: datetime | None


@dataclass(frozen=True, slots=True)
class PluginInfo:
    """A plugin of a queue: where it came from, the hooks that it implements, and the options that it was given."""

    name: str
    version: str
    source: str
    hooks: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
