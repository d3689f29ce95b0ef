"""Looking at indexes: which of those that are wanted are there, and which are there that nobody wants."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Index, text
from sqlalchemy.schema import CreateIndex, DropIndex

from runqueue.schema.tables import tables

_FOUND = text(
    """
    select c.relname, i.indisvalid and i.indisready, t.relname = any(:ours)
      and not exists (select from pg_constraint x where x.conindid = c.oid)
      and not exists (select from pg_inherits p where p.inhrelid = c.oid)
    from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
    join pg_namespace n on n.oid = c.relnamespace where n.nspname = :schema order by c.relname
    """
)
"""Name, whether it is valid, and whether it is one that somebody has chosen to put on a table of the library."""


@dataclass(frozen=True)
class Needs:
    """What a claim policy and a set of plugins need in the database, compared with what is there."""

    missing: tuple[Index, ...] = ()
    invalid: tuple[Index, ...] = ()
    """They are there but no query uses them: a crash or a lock timeout ended their building."""
    unneeded: tuple[str, ...] = ()
    """Names of indexes on the library's tables that none of these wants. Each costs writes; one may be your own."""
    undone: tuple[str, ...] = ()
    """Version locations of plugins with revisions that have not run."""
    others: tuple[str, ...] = ()
    """Branch labels of plugins whose tables are there, and which are not configured here."""

    def with_migrations(self, undone: Sequence[str], others: Sequence[str]) -> Needs:
        """The same, with what is to be said of the plugins' migrations."""
        return replace(self, undone=tuple(undone), others=tuple(others))

    @property
    def to_make(self) -> list[str]:
        """What `migrate` would make, in words."""
        return [
            *(f"the migrations {x!r}" for x in self.undone),
            *(f"the index {x.name}" for x in (*self.missing, *self.invalid)),
        ]

    @property
    def to_drop(self) -> list[str]:
        """What could go, in words. `migrate` drops nothing: another worker's configuration may want it."""
        return [
            *(f"the index {x}" for x in self.unneeded),
            *(f"the tables of the migrations {x!r}" for x in self.others),
        ]

    def drops(self) -> Iterator[DropIndex]:
        """The statements that make room for those that are to be built again."""
        for index in self.invalid:
            index.dialect_options["postgresql"]["concurrently"] = True
            yield DropIndex(index, if_exists=True)

    def creates(self) -> Iterator[CreateIndex]:
        """The statements that build what is missing, without stopping anybody's writes."""
        for index in (*self.missing, *self.invalid):
            index.dialect_options["postgresql"]["concurrently"] = True
            yield CreateIndex(index)


def wanted(schema: str, indexes: Sequence[Index]) -> dict[str, Index]:
    """The tables' own indexes and these, by name. One on a partitioned table cannot be built concurrently: not here."""
    own = [x for table in tables(schema).metadata.tables.values() for x in table.indexes if not _is_partitioned(x)]
    return {str(x.name): x for x in (*own, *indexes)}


def needs(connection: Connection, schema: str, indexes: Sequence[Index], *, tables_too: bool = True) -> Needs:
    """Compare the indexes in the schema with the tables' own (unless told otherwise) and `indexes`."""
    found = {name: (valid, chosen) for name, valid, chosen in _found(connection, schema)}
    all_wanted = wanted(schema, indexes)
    ours = all_wanted if tables_too else {str(x.name): x for x in indexes}
    return Needs(
        missing=tuple(x for name, x in ours.items() if name not in found),
        invalid=tuple(x for name, x in ours.items() if name in found and not found[name][0]),
        unneeded=tuple(name for name, (_, chosen) in found.items() if chosen and name not in all_wanted),
    )


def index_state(connection: Connection, schema: str, name: str) -> bool | None:
    """Whether an index is valid, None where there is none."""
    return next((valid for found, valid, _ in _found(connection, schema) if found == name), None)


def _found(connection: Connection, schema: str) -> list[tuple[str, bool, bool]]:
    ours = [x.name for x in tables(schema).metadata.tables.values()]
    return [tuple(x) for x in connection.execute(_FOUND, {"schema": schema, "ours": ours})]


def _is_partitioned(index: Index) -> bool:
    return index.table is not None and bool(index.table.dialect_options["postgresql"].get("partition_by"))
