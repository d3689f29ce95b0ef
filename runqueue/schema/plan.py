"""What a migration would do, told before it is done: revision by revision, with the locks that it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from runqueue.schema.branches import VERSION_TABLE
from runqueue.schema.locks import Lock, created, locks

Applies = Literal["before", "after"]
"""Whether a revision goes before the new code, which the old code must then bear, or after all of the old code."""


@dataclass(frozen=True)
class Statement:
    """One statement, and the locks that it takes on tables which others may be using."""

    sql: str
    locks: tuple[Lock, ...]


@dataclass(frozen=True)
class Step:
    """A revision that would run, or an index that would be built."""

    name: str
    title: str
    applies: Applies
    statements: tuple[Statement, ...]

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return {
            "name": self.name,
            "title": self.title,
            "applies": self.applies,
            "statements": [
                {"sql": x.sql, "locks": [{"table": y.table, "mode": y.mode, "stops": y.stops} for y in x.locks]}
                for x in self.statements
            ],
        }


def steps(revisions: Iterable[tuple[str, str, Applies, list[str]]]) -> Iterator[Step]:
    """The steps of these names, titles, and statements. A table that an earlier one makes is in nobody's use."""
    new: set[str] = set()
    for name, title, applies, texts in revisions:
        statements = []
        for sql in filter(_matters, texts):
            if (table := created(sql)) is not None:
                new.add(table)
            held = tuple(x for x in locks(sql) if x.table not in new)
            statements.append(Statement(sql.strip().rstrip(";"), held))
        yield Step(name, title, applies, tuple(statements))


def _matters(sql: str) -> bool:
    """Whether it is a statement, and not alembic's own bookkeeping."""
    return sql.strip().rstrip(";").upper() not in ("", "BEGIN", "COMMIT") and VERSION_TABLE not in sql
