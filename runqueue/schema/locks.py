"""Which lock a statement of a migration takes on which table, and what that lock gets in the way of. Pure text."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MODES = (
    "ACCESS SHARE",
    "ROW SHARE",
    "ROW EXCLUSIVE",
    "SHARE UPDATE EXCLUSIVE",
    "SHARE",
    "SHARE ROW EXCLUSIVE",
    "EXCLUSIVE",
    "ACCESS EXCLUSIVE",
)
_CONFLICTS = {0: {7}, 1: {6, 7}, 2: {4, 5, 6, 7}, 3: {3, 4, 5, 6, 7}, 4: {2, 3, 5, 6, 7}, 5: {2, 3, 4, 5, 6, 7},
              6: {1, 2, 3, 4, 5, 6, 7}, 7: set(range(8))}  # fmt: skip

_NAME = r'(?P<name>(?:"[^"]+"|\w+)(?:\.(?:"[^"]+"|\w+))?)'
_SOMETIMES = r"(?:if (?:not )?exists )?(?:only )?"

_NOTHING = re.compile(
    r"(begin|commit|rollback|set|reset|grant|revoke|select"
    r"|(create|alter|drop) (schema|type|domain|sequence|extension|role)|create (or replace )?(view|function)"
    r"|drop (view|function)|comment on (schema|type|index|constraint|view|function))\b",
    re.I,
)
"""What takes no lock on a table that a worker or a producer could feel."""

_TABLE_RULES = tuple(
    (re.compile(pattern.replace("NAME", _SOMETIMES + _NAME), re.I), mode)
    for pattern, mode in (
        (r"create table .+? partition of NAME", "ACCESS EXCLUSIVE"),
        (r"create (?:unique )?index concurrently .*?\bon NAME", "SHARE UPDATE EXCLUSIVE"),
        (r"create (?:unique )?index .*?\bon NAME", "SHARE"),
        (r"(?:drop|re)\s?index concurrently NAME", "SHARE UPDATE EXCLUSIVE"),
        (r"drop index NAME", "ACCESS EXCLUSIVE"),
        (r"create (?:or replace )?(?:constraint )?trigger .+? on NAME", "SHARE ROW EXCLUSIVE"),
        (r"create policy .+? on NAME", "ACCESS EXCLUSIVE"),
        (r"comment on table NAME", "SHARE UPDATE EXCLUSIVE"),
        (r"comment on column (?P<name>.+)\.[^.]+ is", "SHARE UPDATE EXCLUSIVE"),
        (r"(?:drop|truncate)(?: table)? NAME", "ACCESS EXCLUSIVE"),
        (r"(?:update|delete from|insert into) NAME", "ROW EXCLUSIVE"),
    )
)
_ALTER = re.compile(rf"alter table {_SOMETIMES}{_NAME} (?P<action>.+)", re.I)
_LOCK = re.compile(rf"lock (?:table )?(?:only )?{_NAME} in (?P<mode>[a-z ]+) mode", re.I)
_PARTITION = re.compile(rf"attach partition {_NAME}", re.I)
_REFERENCED = re.compile(rf"\breferences {_NAME}", re.I)

_ACTIONS = tuple(
    (re.compile(pattern, re.I), mode)
    for pattern, mode in (
        (r"(validate constraint|attach partition|set \(|reset \(|set without cluster|cluster on)",
         "SHARE UPDATE EXCLUSIVE"),
        (r"detach partition .+ (concurrently|finalize)", "SHARE UPDATE EXCLUSIVE"),
        (r"alter (column )?\S+ (set statistics|set \(|reset \()", "SHARE UPDATE EXCLUSIVE"),
        (r"(add (constraint \S+ )?foreign key|(enable|disable) (always |replica )?trigger)", "SHARE ROW EXCLUSIVE"),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Lock:
    """A lock on a table, under PostgreSQL's name for it. `table` is `?` where the statement does not say which."""

    table: str
    mode: str

    @property
    def stops(self) -> str:
        """What others cannot do meanwhile."""
        conflicts = _CONFLICTS[_MODES.index(self.mode)]
        return "reads and writes" if 0 in conflicts else "writes" if 2 in conflicts else "nothing but schema changes"

    @property
    def conflicting(self) -> list[str]:
        """The locks of others that it waits for, as `pg_locks` spells them."""
        modes = (_MODES[x] for x in sorted(_CONFLICTS[_MODES.index(self.mode)]))
        return [f"{x.title().replace(' ', '')}Lock" for x in modes]


def locks(statement: str) -> tuple[Lock, ...]:
    """The locks on tables that are there already, as far as the text tells. The unknown is taken for the worst."""
    words = " ".join(statement.split()).rstrip("; ")
    if _NOTHING.match(words):
        return ()
    if found := _LOCK.match(words):
        return (_lock(found, found["mode"].upper()),)
    if found := _ALTER.match(words):
        return _altered(found)
    for pattern, mode in _TABLE_RULES:
        if found := pattern.match(words):
            return (_lock(found, mode),)
    if re.match(r"create table\b", words, re.I):
        return tuple(_lock(x, "SHARE ROW EXCLUSIVE") for x in _REFERENCED.finditer(words))
    return (Lock("?", "ACCESS EXCLUSIVE"),)


def created(statement: str) -> str | None:
    """The table that a statement makes, None for other statements."""
    found = re.match(rf"\s*create table {_SOMETIMES}{_NAME}", " ".join(statement.split()), re.I)
    return found["name"].replace('"', "") if found else None


def _altered(found: re.Match[str]) -> tuple[Lock, ...]:
    action = found["action"]
    mode = next((mode for pattern, mode in _ACTIONS if pattern.match(action)), "ACCESS EXCLUSIVE")
    others = [_lock(x, "ACCESS EXCLUSIVE") for x in _PARTITION.finditer(action)]
    others += [_lock(x, "SHARE ROW EXCLUSIVE") for x in _REFERENCED.finditer(action)]
    return (_lock(found, mode), *others)


def _lock(found: re.Match[str], mode: str) -> Lock:
    return Lock(found["name"].replace('"', ""), mode)
