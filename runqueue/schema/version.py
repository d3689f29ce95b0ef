"""Which version of the schema a database has: recorded as a comment, so that it is there in every alembic lineage."""

from __future__ import annotations

import shlex

from sqlalchemy import Connection, func, select

from runqueue.errors import SchemaOutdated
from runqueue.schema.tables import COMMENT, SCHEMA_VERSION


def recorded_version(connection: Connection, schema: str) -> int | None:
    """The version, 0 where the table has no such comment, None where there is no table."""
    table = func.to_regclass(f'"{schema}".agent_runs')
    exists, comment = connection.execute(select(table.is_not(None), func.obj_description(table, "pg_class"))).one()
    if not exists:
        return None
    _, found, number = (comment or "").partition(COMMENT)
    return int(number) if found and number.isdigit() else 0


def require_version(connection: Connection, schema: str) -> None:
    """Raise SchemaOutdated unless the database is at this release's version, or newer."""
    version = recorded_version(connection, schema)
    if version is None or version < SCHEMA_VERSION:
        have = "missing" if version is None else f"at version {version}"
        option = "" if schema == "runqueue" else f" --schema {shlex.quote(schema)}"
        raise SchemaOutdated(
            f"the schema {schema!r} is {have}, this release needs version {SCHEMA_VERSION}: "
            f"run `runqueue migrate{option}`"
        )
