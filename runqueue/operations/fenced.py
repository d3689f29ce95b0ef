"""The end of a fenced transaction: the fence, the events and the checkpoint, in one statement."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from runqueue.errors import LeaseLost
from runqueue.operations.context import Context
from runqueue.statements import journal
from runqueue.types import Lease


def write(
    connection: Connection, ctx: Context, lease: Lease, events: Sequence[tuple[str, str]], checkpoint: str | None
) -> None:
    """Check the lease under a lock that lasts to the commit, then store events (type, JSON text) and a checkpoint.

    Raises LeaseLost, and the caller must roll back.
    """
    key = {"run_id": lease.run_id, "token": lease.fencing_token}
    if not events and checkpoint is None:
        held = connection.execute(journal.fence_only(ctx.t), key).one_or_none()
    else:
        parameters = {
            **key,
            "event_count": len(events),
            "types": [type_ for type_, _ in events],
            "data": [data for _, data in events],
            "saves": 0 if checkpoint is None else 1,
            "checkpoint": checkpoint,
            "kept": ctx.settings.checkpoints_kept,
        }
        held = connection.execute(journal.fence_and_write(ctx.t), parameters).one_or_none()
    if held is None:
        raise LeaseLost([lease])
