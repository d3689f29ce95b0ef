"""What the demo claims at its end. Each claim is one query, which gives the evidence and says whether it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Connection, text

from runqueue.demo import evidence


@dataclass(frozen=True)
class Cast:
    """Who played which part, and what was enqueued: how many runs for each tenant."""

    resumed: UUID
    cancelled: UUID
    poison: UUID
    killed_pid: int
    enqueued: Mapping[str, int]


@dataclass(frozen=True)
class Claim:
    """A sentence, whether the database bears it out, and what was found there."""

    text: str
    true: bool
    found: str

    def __str__(self) -> str:
        return f"{'true ' if self.true else 'FALSE'}  {self.text}\n         {self.found}"


def verdict(connection: Connection, cast: Cast) -> list[Claim]:
    """Ask the database about every claim."""
    parameters = {
        "resumed": cast.resumed,
        "cancelled": cast.cancelled,
        "poison": cast.poison,
        "killed": cast.killed_pid,
        "enqueued": json.dumps(dict(cast.enqueued)),
    }
    claims = []
    for sentence, query in evidence.CLAIMS.items():
        row = connection.execute(text(query), parameters).mappings().one_or_none() or {"found": "nothing"}
        found = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in row.items() if name != "holds")
        claims.append(Claim(sentence, row.get("holds") is True, found))
    return claims
