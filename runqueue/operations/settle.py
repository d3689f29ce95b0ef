"""Ending a lease: complete, fail, release, cancelled. Each write compares the token; each may be repeated."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Row

from runqueue import values
from runqueue.errors import LeaseLost, RowLocked
from runqueue.failures import describe
from runqueue.operations.context import Context
from runqueue.operations.inspect import get
from runqueue.operations.rows import run_of
from runqueue.statements import finish
from runqueue.types import Lease, Run, RunStatus
from runqueue.values import clean


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
    error: tuple[str, str],
    retry: bool = True,
    delay: float | None = None,
) -> Run:
    """End the lease as failed: pending again after a delay, dead, or cancelled where that was requested.

    `error` is the code and text from `describe_error`. Raises LeaseLost.
    """
    code, _ = error
    row = _hold(connection, ctx, lease)
    if row is None:
        return _repeated(connection, ctx, lease)
    data: dict[str, Any] = {"error_code": code, "attempts": row.attempts}
    if row.cancel_requested_at is not None:
        return _settle(connection, ctx, lease, RunStatus.CANCELLED, "run.cancelled", data, error)
    wait = math.inf
    if retry and row.attempts < row.max_attempts:
        wait = ctx.hooks.retry_delay(row.kind, row.attempts, code, ctx.settings) if delay is None else delay
    if math.isinf(wait):
        return _settle(connection, ctx, lease, RunStatus.DEAD, "run.dead", data, error)
    return _settle(connection, ctx, lease, RunStatus.PENDING, "run.failed", data | {"delay": wait}, error, delay=wait)


def release(connection: Connection, ctx: Context, lease: Lease, delay: float = 0.0, reason: str = "released") -> Run:
    """Give the run back unharmed, to be claimed again after `delay` seconds; the attempt is not charged.

    A run whose cancel was requested ends as cancelled. Raises LeaseLost.
    """
    data = {"reason": values.reason(reason), "delay": delay}
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


def describe_error(ctx: Context, error: BaseException | str) -> tuple[str, str]:
    """What may be stored of an error: its code and its text, redacted, cleaned and cut. Never fails."""
    code, message = describe(error)
    return clean(ctx.hooks.redact(code), 200), clean(ctx.hooks.redact(message), ctx.settings.error_limit)


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
    error: tuple[str | None, str | None] = (None, None),
    *,
    delay: float = 0.0,
    given_back: int = 0,
) -> Run:
    parameters = {
        "run_id": lease.run_id,
        "token": lease.fencing_token,
        "given_back": given_back,
        "error_code": error[0],
        "error_message": error[1],
        "type": type_,
        "data": json.dumps(data),
    }
    if not target.terminal:
        parameters["delay"] = delay
    return run_of(connection.execute(finish.settle(ctx.t, target), parameters).one())


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
