"""Claims take pending runs only; a sweep, which any worker runs, returns expired leases.

`locked_until` is in no index, so a heartbeat is a HOT update. A lost run waits for the next sweep.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Executable, Index

from runqueue.schema.tables import Tables
from runqueue.statements.claim import Arm, pending_arm
from runqueue.statements.expiry import sweep


class Reaper:
    """The default policy."""

    name = "reaper"

    def arms(self) -> Sequence[Arm]:
        """Due pending runs."""
        return (pending_arm,)

    def sweep(self, t: Tables) -> Executable:
        """Every expired lease."""
        return sweep(t, only_ending=False)

    def indexes(self, t: Tables) -> Sequence[Index]:
        """None."""
        del t
        return ()
