"""Ending a lease: complete, fail, release, cancelled. Each write compares the token; each may be repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from runqueue.decisions import Failure, RetryDelay
from runqueue.errors import LeaseLost, RowLocked
from runqueue.failures import Described
from runqueue.operations.context import Context
from runqueue.operations.inspect import get
from runqueue.operations.observe import observe_finished
from runqueue.operations.redacting import reason as redacted_reason
from runqueue.operations.rows import run_of
from runqueue.statements import finish
from runqueue.types import Lease, Run, RunStatus


def complete_many(connection: Connection, ctx: Context, done: Sequence[tuple[Lease, str | None]]) -> list[Lease]:
    """End the leases as done, with results as JSON texts; return those that were lost.

    One statement, and a second one only if some lease was not found: then it either was lost, or this is the repetition
    of a call whose answer was lost, which is a success.
    """
    return _complete(connection, ctx, done, wait=True)[0]


def complete_free(
    connection: Connection, ctx: Context, done: Sequence[tuple[Lease, str | None]]
) -> tuple[list[Lease], list[Lease]]:
    """The same without waiting for anybody; return also those whose run another transaction has locked."""
    return _complete(connection, ctx, done, wait=False)


def _complete(
    connection: Connection, ctx: Context, done: Sequence[tuple[Lease, str | None]], *, wait: bool
) -> tuple[list[Lease], list[Lease]]:
    if not done:
        return [], []
    parameters = {
        "ids": [x.run_id for x, _ in done],
        "tokens": [x.fencing_token for x, _ in done],
        "results": [result for _, result in done],
    }
    ended = {(row.id, row.fencing_token) for row in connection.execute(finish.complete(ctx.t, wait=wait), parameters)}
    observe_finished(connection, ctx, [run_id for run_id, _ in ended])
    missed = [x for x, _ in done if (x.run_id, x.fencing_token) not in ended]
    if not missed:
        return [], []
    known = _settled(connection, ctx, missed)
    locked = [x for x in missed if _is_held(known, x)]
    return [x for x in missed if x not in locked and not _is_own(known, x, RunStatus.DONE)], locked


def fail(
    connection: Connection,
    ctx: Context,
    lease: Lease,
    error: Described,
    retry: bool = True,
    delay: float | None = None,
) -> Run:
    """End the lease as failed: pending again after a delay, dead, or cancelled where that was requested.

    `error` is what `redacting.describe_error` made of it. Raises LeaseLost.
    """
    row = _hold(connection, ctx, lease)
    if row is None:
        return _repeated(connection, ctx, lease)
    data: dict[str, Any] = {"error_code": error.code, "attempts": row.attempts}
    if row.cancel_requested_at is not None:
        return _settle(connection, ctx, lease, RunStatus.CANCELLED, "run.cancelled", data, error)
    chosen = _next_try(ctx, row, error, retry, delay)
    data["reason"] = redacted_reason(ctx, chosen.reason)
    if math.isinf(chosen.seconds):
        return _settle(connection, ctx, lease, RunStatus.DEAD, "run.dead", data, error)
    data["delay"] = chosen.seconds
    return _settle(connection, ctx, lease, RunStatus.PENDING, "run.failed", data, error, delay=chosen.seconds)


def release(connection: Connection, ctx: Context, lease: Lease, delay: float = 0.0, reason: str = "released") -> Run:
    """Give the run back unharmed, to be claimed again after `delay` seconds; the attempt is not charged.

    A run whose cancel was requested ends as cancelled. Raises LeaseLost.
    """
    data = {"reason": redacted_reason(ctx, reason), "delay": delay}
    row = _hold(connection, ctx, lease)
    if row is None:
        return _repeated(connection, ctx, lease)
    if row.cancel_requested_at is not None:
        return _settle(connection, ctx, lease, RunStatus.CANCELLED, "run.cancelled", data)
    return _settle(connection, ctx, lease, RunStatus.PENDING, "run.released", data, delay=delay, given_back=1)


def settle_cancelled(connection: Connection, ctx: Context, lease: Lease) -> Run:
    """End the lease as cancelled, once the handler has stopped. Raises LeaseLost."""
    row = _hold(connection, ctx, lease)
    if row is None:
        return _repeated(connection, ctx, lease)
    return _settle(connection, ctx, lease, RunStatus.CANCELLED, "run.cancelled", {"reason": row.cancel_reason})


def _next_try(ctx: Context, row: Row[Any], error: Described, retry: bool, delay: float | None) -> RetryDelay:
    """When the run is tried again, and who says so."""
    if not retry:
        return RetryDelay(math.inf, "the error is final")
    if row.attempts >= row.max_attempts:
        return RetryDelay(math.inf, "no attempt is left")
    if delay is not None:
        return RetryDelay(delay, "the handler's own delay")
    failure = Failure(
        kind=row.kind,
        tenant_id=row.tenant_id,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        error=error.exception,
        error_code=error.code,
        error_message=error.message,
        age=row.age,
    )
    return ctx.hooks.retry_delay(failure, ctx.settings)


def _hold(connection: Connection, ctx: Context, lease: Lease) -> Row[Any] | None:
    key = {"run_id": lease.run_id, "token": lease.fencing_token}
    return connection.execute(finish.hold(ctx.t, wait=ctx.patient), key).one_or_none()


def _settle(
    connection: Connection,
    ctx: Context,
    lease: Lease,
    target: RunStatus,
    type_: str,
    data: dict[str, Any],
    error: Described | None = None,
    *,
    delay: float = 0.0,
    given_back: int = 0,
) -> Run:
    parameters = {
        "run_id": lease.run_id,
        "token": lease.fencing_token,
        "given_back": given_back,
        "error_code": error and error.code,
        "error_message": error and error.message,
        "type": type_,
        "data": json.dumps(data),
    }
    if not target.terminal:
        parameters["delay"] = delay
    run = run_of(connection.execute(finish.settle(ctx.t, target), parameters).one())
    ctx.hooks.runs_finished(connection, [run], ctx.t.schema)
    return run


def _repeated(connection: Connection, ctx: Context, lease: Lease) -> Run:
    known = _settled(connection, ctx, [lease])
    if _is_held(known, lease):
        raise RowLocked(f"run {lease.run_id} is locked by another transaction")
    if not _is_own(known, lease):
        raise LeaseLost([lease])
    return get(connection, ctx, lease.run_id)


def _settled(connection: Connection, ctx: Context, leases: Sequence[Lease]) -> dict[tuple[Any, int], Row[Any]]:
    parameters = {"ids": [x.run_id for x in leases], "tokens": [x.fencing_token for x in leases]}
    return {(row.id, row.token): row for row in connection.execute(finish.settled(ctx.t), parameters)}


def _is_own(known: dict[tuple[Any, int], Row[Any]], lease: Lease, status: RunStatus | None = None) -> bool:
    row = known.get((lease.run_id, lease.fencing_token))
    return row is not None and row.own and (status is None or row.status == status)


def _is_held(known: dict[tuple[Any, int], Row[Any]], lease: Lease) -> bool:
    row = known.get((lease.run_id, lease.fencing_token))
    return row is not None and bool(row.held)
