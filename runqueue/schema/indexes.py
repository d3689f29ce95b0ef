"""Looking at indexes: whether those that a policy wants are there."""

from __future__ import annotations

from sqlalchemy import Connection, text


def index_state(connection: Connection, schema: str, name: str) -> bool | None:
    """Whether an index is valid, None where there is none."""
    statement = text(
        "select i.indisvalid from pg_index i join pg_class c on c.oid = i.indexrelid "
        "join pg_namespace n on n.oid = c.relnamespace where n.nspname = :schema and c.relname = :name"
    )
    value: bool | None = connection.execute(statement, {"schema": schema, "name": name}).scalar()
    return value
