"""The migrations of plugins: each location is a branch of its own, recorded in a version table of its own.

So a database that was migrated with a plugin can be migrated without it. The revisions of a plugin may depend on the
library's; for as long as they run, the library's newest one is recorded beside them, as what is there already.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Column, Connection, Index, MetaData, String, Table, func, insert, literal, select
from sqlalchemy.schema import CreateTable, ExecutableDDLElement
from sqlalchemy.sql.dml import UpdateBase

from runqueue.schema.indexes import index_state

VERSION_TABLE = "runqueue_version"
"""Where the library's own revisions are recorded, and how the names of the plugins' version tables begin."""


@dataclass(frozen=True)
class Branch:
    """The revisions at one location. `under` is the library's newest one, which those in `over` depend on."""

    location: str
    label: str
    head: str
    under: str
    over: frozenset[str] = frozenset()

    @property
    def version_table(self) -> str:
        """The name of its version table."""
        return f"{VERSION_TABLE}_{self.label}"

    def table(self, schema: str) -> Table:
        """Its version table, as alembic would make it."""
        column = Column("version_num", String(32), primary_key=True)
        return Table(self.version_table, MetaData(schema=schema), column)

    def before(self, schema: str) -> list[ExecutableDDLElement | UpdateBase]:
        """Make the version table, and record what is under the branch, where that is not said by its revisions."""
        table = self.table(schema)
        said = select(table.c.version_num).where(table.c.version_num.in_([self.under, *sorted(self.over)]))
        under = select(literal(self.under, String)).where(~said.exists())
        return [CreateTable(table, if_not_exists=True), insert(table).from_select(["version_num"], under)]

    def after(self, schema: str) -> list[ExecutableDDLElement | UpdateBase]:
        """Forget what is under the branch: it changes without us."""
        table = self.table(schema)
        return [table.delete().where(table.c.version_num == self.under)]

    def is_done(self, connection: Connection, schema: str) -> bool:
        """Whether the database has the newest revision."""
        return self.head in recorded(connection, self.table(schema))


def recorded(connection: Connection, table: Table) -> list[str]:
    """The revisions in a version table, none where there is no such table."""
    if connection.execute(select(func.to_regclass(f'"{table.schema}".{table.name}'))).scalar() is None:
        return []
    return list(connection.execute(select(table.c.version_num)).scalars())


def others(connection: Connection, schema: str) -> list[str]:
    """The labels of branches that the database has revisions of."""
    catalog = Table("pg_tables", MetaData(schema="pg_catalog"), Column("schemaname"), Column("tablename"))
    names = connection.execute(
        select(catalog.c.tablename)
        .where(catalog.c.schemaname == schema, catalog.c.tablename.startswith(f"{VERSION_TABLE}_", autoescape=True))
        .order_by(catalog.c.tablename)
    ).scalars()
    labels = [name.removeprefix(f"{VERSION_TABLE}_") for name in names]
    return [x for x in labels if recorded(connection, Branch("", x, "", "").table(schema))]


def missing(connection: Connection, schema: str, indexes: tuple[Index, ...], branches: list[Branch]) -> list[str]:
    """What of these there is still to be made, in words."""
    return [
        *(f"the migrations {x.location!r}" for x in branches if not x.is_done(connection, schema)),
        *(f"the index {x.name}" for x in indexes if not index_state(connection, schema, str(x.name))),
    ]
