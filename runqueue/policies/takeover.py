"""The claim itself takes expired leases, before pending runs; no sweep is needed to make progress.

A lost run is taken at the moment its lease ends. The price is an index on `locked_until`, which each heartbeat writes.
Two arms, each its own range with its own locks: an OR over both would scan the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Executable, Index, MetaData, text

from runqueue.schema.tables import Tables
from runqueue.statements.claim import Arm, expired_arm, pending_arm
from runqueue.statements.expiry import sweep


class Takeover:
    """The policy for fleets that cannot wait for a sweep."""

    name = "takeover"

    def arms(self) -> Sequence[Arm]:
        """Expired leases, then due pending runs."""
        return (expired_arm, pending_arm)

    def sweep(self, t: Tables) -> Executable:
        """Expired runs that must end; a claim does it in passing, but for kinds that no worker claims it would not."""
        return sweep(t, only_ending=True)

    def indexes(self, t: Tables) -> Sequence[Index]:
        """Leases by queue, kind and end."""
        runs = t.runs.to_metadata(MetaData())  # an index of its own table would become part of the install's metadata
        index = Index(
            "agent_runs_expiry_idx",
            runs.c.queue,
            runs.c.kind,
            runs.c.locked_until,
            postgresql_where=text("status = 'leased'"),
        )
        return (index,)
