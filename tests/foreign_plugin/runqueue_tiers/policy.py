"""New work first; lost runs are taken over when there is nothing else to do."""

from __future__ import annotations

from typing import Any

from runqueue.policies import Takeover


class FreshFirst(Takeover):
    """The takeover, with its arms in the other order."""

    name = "fresh_first"

    def arms(self) -> Any:
        """Due pending runs, then expired leases."""
        return tuple(reversed(super().arms()))
