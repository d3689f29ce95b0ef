"""Which version of the schema a database has: recorded as a comment, so that it is there in every alembic lineage.

The comment is `runqueue schema 7`, or `runqueue schema 7, for code of 6`: the version, and the oldest release that can
still use it, by the version that this release makes. Without the second part every older release can, because the
revision only added what the old code does not look at.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from sqlalchemy import Connection, func, select

from runqueue.errors import SchemaOutdated
from runqueue.schema.tables import COMMENT, NEEDED_VERSION, SCHEMA_VERSION

_RECORDED = re.compile(rf"{COMMENT}(\d+)(?:, for code of (\d+))?\Z")


class Recorded(NamedTuple):
    """What the database says of its schema."""

    version: int
    oldest_code: int = 0


def recorded(connection: Connection, schema: str) -> Recorded | None:
    """The version, 0 where the table has no such comment, None where there is no table."""
    table = func.to_regclass(f'"{schema}".agent_runs')
    exists, comment = connection.execute(select(table.is_not(None), func.obj_description(table, "pg_class"))).one()
    if not exists:
        return None
    found = _RECORDED.match(comment or "")
    return Recorded(int(found[1]), int(found[2] or 0)) if found else Recorded(0)


def recorded_version(connection: Connection, schema: str) -> int | None:
    """The version alone."""
    found = recorded(connection, schema)
    return None if found is None else found.version


def require_version(connection: Connection, schema: str) -> None:
    """Raise SchemaOutdated where this release's code and the database's schema do not go together."""
    found = recorded(connection, schema)
    if found is None or found.version < NEEDED_VERSION:
        have = "missing" if found is None else f"at version {found.version}"
        option = "" if schema == "runqueue" else f" --schema {shlex.quote(schema)}"
        raise SchemaOutdated(
            f"the schema {schema!r} is {have}, this release needs version {NEEDED_VERSION}: "
            f"run `runqueue migrate{option}`"
        )
    if found.oldest_code > SCHEMA_VERSION:
        raise SchemaOutdated(
            f"the schema {schema!r} is at version {found.version}, which needs a release of version "
            f"{found.oldest_code} or newer, and this one is of version {SCHEMA_VERSION}: upgrade the package runqueue"
        )
