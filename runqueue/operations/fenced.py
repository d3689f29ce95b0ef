"""The end of a fenced transaction: the fence, the events and the checkpoint, in one statement."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from runqueue.decisions import KeepLast
from runqueue.errors import LeaseLost
from runqueue.operations.context import Context
from runqueue.statements import journal
from runqueue.types import Lease


def write(
    connection: Connection,
    ctx: Context,
    lease: Lease,
    events: Sequence[tuple[str, str]],
    checkpoint: str | None,
    spent: float = 0.0,
) -> None:
    """Check the lease under a lock that lasts to the commit, then store events (type, JSON text), a checkpoint and what
    was spent.

    Raises LeaseLost, and the caller must roll back.
    """
    key = {"run_id": lease.run_id, "token": lease.fencing_token}
    store, kept = ctx.store, 0
    if isinstance(store, KeepLast):
        kept = store.count
    elif checkpoint is not None:
        store.save(connection, lease, checkpoint)
        checkpoint = None
    if not events and checkpoint is None and not spent:
        held = connection.execute(journal.fence_only(ctx.t), key).one_or_none()
    else:
        parameters = {
            **key,
            "event_count": len(events),
            "types": [type_ for type_, _ in events],
            "data": [data for _, data in events],
            "saves": 0 if checkpoint is None else 1,
            "checkpoint": checkpoint,
            "kept": kept,
            "spent": spent,
        }
        held = connection.execute(journal.fence_and_write(ctx.t), parameters).one_or_none()
    if held is None:
        raise LeaseLost([lease])
