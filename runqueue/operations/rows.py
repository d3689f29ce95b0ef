"""From rows to the public values."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Row

from runqueue.types import Event, Run, RunStatus
from runqueue.values import decode


def run_of(row: Row[Any]) -> Run:
    """A run from a row of `run_columns`."""
    return Run(
        id=row.id,
        tenant_id=row.tenant_id,
        queue=row.queue,
        kind=row.kind,
        status=RunStatus(row.status),
        priority=row.priority,
        attempts=row.attempts,
        max_attempts=row.max_attempts,
        available_at=row.available_at,
        locked_until=row.locked_until,
        locked_by=row.locked_by,
        fencing_token=row.fencing_token,
        cancel_requested_at=row.cancel_requested_at,
        cancel_reason=row.cancel_reason,
        budget=decode(row.budget_json),
        input=decode(row.input_json),
        result=decode(row.result_json),
        error_code=row.error_code,
        error_message=row.error_message,
        idempotency_key=row.idempotency_key,
        parent_id=row.parent_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
        finished_at=row.finished_at,
        leased_at=row.leased_at,
        spent=row.spent,
    )


def event_of(row: Row[Any]) -> Event:
    """An event from a row."""
    return Event(row.run_id, row.seq, row.type, decode(row.data), row.created_at)
