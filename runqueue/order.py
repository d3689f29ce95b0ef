"""How claimable runs are ordered, as a value that a plugin returns and the claim statement is composed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column


@dataclass(frozen=True, slots=True)
class ClaimOrder:
    """An order that an index can serve.

    `terms` are columns of `agent_runs`, ascending. `level`, where given, comes before them, descending: its distinct
    values are stepped through one by one, so that within a level the runs that are not due yet, a range of
    `available_at`, are never read. An index must have (queue, kind, level, *terms) of the pending runs.
    """

    terms: tuple[Column[Any], ...]
    level: Column[Any] | None = None
