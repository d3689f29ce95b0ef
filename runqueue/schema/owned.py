"""Which tables are the library's, by their names: for hosts whose alembic looks at the schema that they are in."""

from __future__ import annotations

import re

from runqueue.schema.branches import VERSION_TABLE
from runqueue.schema.tables import tables


def is_ours(name: str, more: frozenset[str] = frozenset()) -> bool:
    """Whether a table is one of the library's, of `more`, a partition of either, or a version table."""
    names = {table.name for table in tables("runqueue").metadata.tables.values()} | more
    # partitions are made while the application runs, and called after their table and a date
    parent = re.sub(r"_p?\d\w*\Z", "", name)
    return name in names or parent in names or name == VERSION_TABLE or name.startswith(f"{VERSION_TABLE}_")
