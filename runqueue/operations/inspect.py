"""Reading and steering runs from outside: get, list, events, cancel, retry, explain, stats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from runqueue import values
from runqueue.errors import RunNotFound
from runqueue.operations.announce import announce
from runqueue.operations.context import STOP_HINT, Context, work_hint
from runqueue.operations.redacting import reason as redacted_reason
from runqueue.operations.rows import event_of, run_of
from runqueue.statements import control, reading, standing
from runqueue.types import Event, Explanation, Page, QueueStats, Run, RunStatus

CAUSE = 500
"""How many characters of an error or a reason `explain` quotes."""


def _tenant(tenant_id: str | None) -> str | None:
    return None if tenant_id is None else values.name(tenant_id, field="tenant_id")


def _number(after: int) -> int:
    return values.integer(after, field="after", low=0, high=2**63 - 1)


def get(connection: Connection, ctx: Context, run_id: UUID | str, tenant_id: str | None = None) -> Run:
    """The run, hot or archived. Raises RunNotFound, also where it belongs to another tenant."""
    row = connection.execute(
        reading.get(ctx.t), {"run_id": values.run_id(run_id), "tenant": _tenant(tenant_id)}
    ).first()
    if row is None:
        raise RunNotFound(values.run_id(run_id))
    return run_of(row)


def list_runs(connection: Connection, ctx: Context, filters: dict[str, str], limit: int, cursor: UUID | None) -> Page:
    """Runs, newest first."""
    status = RunStatus(filters["status"]) if "status" in filters else None
    names = tuple(sorted(filters.keys() - {"status"}))
    statement = reading.page(ctx.t, names, status=status, after=cursor is not None)
    rows = connection.execute(statement, {**filters, "limit": limit + 1, "cursor": cursor}).all()
    runs = tuple(run_of(row) for row in rows[:limit])
    return Page(runs, runs[-1].id if len(rows) > limit else None)


def events(
    connection: Connection, ctx: Context, run_id: UUID | str, after: int, limit: int, tenant_id: str | None = None
) -> list[Event]:
    """Events of the run with `seq` above `after`. Raises RunNotFound."""
    rows = connection.execute(
        reading.events(ctx.t), {"run_id": values.run_id(run_id), "after": _number(after), "limit": limit}
    ).all()
    if not rows or tenant_id is not None:
        get(connection, ctx, run_id, tenant_id)
    return [event_of(row) for row in rows]


def watch(connection: Connection, ctx: Context, ids: Sequence[UUID]) -> dict[UUID, tuple[RunStatus, int]]:
    """State and last event number of each run; runs that do not exist are left out."""
    rows = connection.execute(reading.watch(ctx.t), {"ids": list(ids)})
    return {row.id: (RunStatus(row.status), row.event_seq) for row in rows}


def cancel(
    connection: Connection, ctx: Context, run_id: UUID | str, reason: str | None = None, tenant_id: str | None = None
) -> Run:
    """Cancel a pending run at once, ask a leased one to stop; leave one that has ended as it is. Raises RunNotFound."""
    parameters = {
        "run_id": values.run_id(run_id),
        "tenant": _tenant(tenant_id),
        "reason": redacted_reason(ctx, reason),
    }
    row = connection.execute(control.cancel(ctx.t), parameters).one_or_none()
    if row is None:
        return get(connection, ctx, run_id, tenant_id)
    announce(connection, ctx, [STOP_HINT])
    run = run_of(row)
    if run.status is RunStatus.CANCELLED:
        ctx.hooks.runs_finished(connection, [run], ctx.t.schema)
    return run


def retry(
    connection: Connection, ctx: Context, run_id: UUID | str, delay: float = 0.0, tenant_id: str | None = None
) -> Run:
    """Make a dead or cancelled run pending again; leave any other as it is. Raises RunNotFound."""
    parameters = {"run_id": values.run_id(run_id), "tenant": _tenant(tenant_id), "delay": delay}
    row = connection.execute(control.retry(ctx.t), parameters).one_or_none()
    if row is None:
        return get(connection, ctx, run_id, tenant_id)
    announce(connection, ctx, [work_hint(row.queue)])
    return run_of(row)


def pause(connection: Connection, ctx: Context, queue: str, kind: str, reason: str | None) -> None:
    """Stop claims of the queue, or of one kind in it; running runs go on."""
    connection.execute(control.pause(ctx.t), {"queue": queue, "kind": kind, "reason": redacted_reason(ctx, reason)})


def resume(connection: Connection, ctx: Context, queue: str, kind: str) -> None:
    """Undo `pause`."""
    connection.execute(control.resume(ctx.t), {"queue": queue, "kind": kind})
    announce(connection, ctx, [work_hint(queue)])


def stats(connection: Connection, ctx: Context) -> list[QueueStats]:
    """Counts of the hot table by queue and kind."""
    return [QueueStats(**row._mapping) for row in connection.execute(reading.stats(ctx.t))]


def explain(connection: Connection, ctx: Context, run_id: UUID | str, tenant_id: str | None = None) -> Explanation:
    """Which rule holds the run where it is. Raises RunNotFound."""
    # a hot run and where it stands are one look: between two it could move
    wanted = {"run_id": values.run_id(run_id), "tenant": _tenant(tenant_id)}
    row = connection.execute(standing.standing(ctx.t, ctx.tenants), wanted).one_or_none()
    run = get(connection, ctx, run_id, tenant_id) if row is None else run_of(row)
    rule, detail = _rule(run, None if row is None else row._mapping, "tenant" if ctx.tenants else "kind")
    return Explanation(run.id, run.status, rule, detail)


def _rule(run: Run, now: Any, peers: str) -> tuple[str, str]:
    if run.status.terminal or now is None:
        return "ended", f"the run is {run.status.value} since {run.finished_at:%Y-%m-%d %H:%M:%S %Z}{_cause(run)}"
    if run.status is RunStatus.LEASED:
        if now["lease_left"] <= 0:
            return (
                "lease_expired",
                f"the lease of {run.locked_by} ended {-now['lease_left']:.0f} s ago; a sweep or claim is due",
            )
        asked = "; it was asked to stop" if run.cancel_requested_at else ""
        return "leased", f"{run.locked_by} has it, for at least {now['lease_left']:.0f} s more{asked}"
    if now["paused_kind"] is not None:
        what = f"the kind {run.kind!r} in the queue" if now["paused_kind"] else "the queue"
        why = f": {now['paused_reason']}" if now["paused_reason"] else ""
        return "paused", f"{what} {run.queue!r} is paused{why}"
    if now["due_in"] > 0:
        why = f"after attempt {run.attempts} failed" if run.attempts else "as it was enqueued"
        return "scheduled", f"due in {now['due_in']:.0f} s, {why}"
    if now["cap"] is not None and now["in_flight"] >= now["cap"]:
        return "tenant_cap", f"{run.tenant_id} has {now['in_flight']} of {now['cap']} runs in flight"
    ahead = f"{now['ahead']}{' or more' if now['ahead'] >= standing.MANY else ''}"
    return (
        "waiting",
        f"due since {-now['due_in']:.0f} s, behind {ahead} runs of its {peers}: "
        f"no worker that handles the kind {run.kind!r} in the queue {run.queue!r} had a free slot for it",
    )


def _cause(run: Run) -> str:
    """Why an ended run ended so; nothing for one that is done."""
    told = {RunStatus.DEAD: (run.error_code, run.error_message), RunStatus.CANCELLED: (run.cancel_reason,)}
    causes: tuple[str | None, ...] = told.get(run.status, ())
    text = ": ".join(x for x in causes if x)
    return f": {text if len(text) <= CAUSE else f'{text[: CAUSE - 1]}…'}" if text else ""
