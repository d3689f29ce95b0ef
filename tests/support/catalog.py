"""What a schema holds, as the database sees it: lines of text that two schemas can be compared by."""

from __future__ import annotations

from sqlalchemy import Connection, text

QUERIES = [
    """select 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text,
              concat_ws(' ', pg_get_expr(d.adbin, d.adrelid), a.attstorage, a.attcompression, a.attidentity,
                        a.attgenerated)
       from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
       left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
       where c.relnamespace = to_regnamespace(:schema) and c.relkind in ('r', 'p')""",
    """select 'table', c.relname, c.relkind::text, coalesce(c.reloptions::text, ''),
              coalesce(obj_description(c.oid, 'pg_class'), ''), coalesce(pg_get_partkeydef(c.oid), '')
       from pg_class c where c.relnamespace = to_regnamespace(:schema) and c.relkind in ('r', 'p')""",
    """select 'toast', c.relname, t.reloptions::text, '', '', ''
       from pg_class c join pg_class t on t.oid = c.reltoastrelid and t.reloptions is not null
       where c.relnamespace = to_regnamespace(:schema) and c.relkind in ('r', 'p')""",
    """select 'index', c.relname, pg_get_indexdef(c.oid), i.indisvalid::text, '', ''
       from pg_class c join pg_index i on i.indexrelid = c.oid where c.relnamespace = to_regnamespace(:schema)""",
    """select 'constraint', conname, conrelid::regclass::text, contype::text, convalidated::text,
              pg_get_constraintdef(oid)
       from pg_constraint where connamespace = to_regnamespace(:schema) and contype <> 'n'""",
    """select 'other', c.relname, c.relkind::text, '', '', '' from pg_class c
       where c.relnamespace = to_regnamespace(:schema) and c.relkind not in ('r', 'p', 'i', 'I', 't')""",
]
NOT_OURS = "runqueue_version"
"""Alembic's own table; no part of the schema that the library describes."""


def contents(connection: Connection, schema: str) -> list[str]:
    """A line for each column, table, index and constraint. The schema's name is left out, alembic's table too."""
    rows = [tuple(row) for query in QUERIES for row in connection.execute(text(query), {"schema": schema})]
    lines = [" | ".join(row).replace(f"{schema}.", "") for row in rows if not row[1].startswith(NOT_OURS)]
    return sorted(lines)
