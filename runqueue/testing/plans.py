"""What a statement costs: its plan, executed, with the rows that its scans looked at, and the buffers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from psycopg.sql import Literal
from sqlalchemy import Connection, CursorResult, Executable
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

DIALECT: Any = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Plan:
    """An executed plan."""

    root: dict[str, Any]

    def nodes(self) -> Iterator[dict[str, Any]]:
        """All of its nodes, those of CTEs and subplans too."""
        stack = [self.root]
        while stack:
            node = stack.pop()
            yield node
            stack += node.get("Plans", ())

    @property
    def scans(self) -> list[tuple[str, str, str | None]]:
        """Kind of scan, table and index of each scan of a table that was executed."""
        return sorted(
            {
                (x["Node Type"], x["Relation Name"], x.get("Index Name"))
                for x in self.nodes()
                if "Scan" in x["Node Type"] and "Relation Name" in x and x["Actual Loops"]
            }
        )

    @property
    def indexes(self) -> set[str]:
        """The indexes that were read."""
        return {x["Index Name"] for x in self.nodes() if "Index Name" in x and x["Actual Loops"]}

    @property
    def whole_tables(self) -> set[str]:
        """The tables that were read from end to end."""
        return {x["Relation Name"] for x in self.nodes() if x["Node Type"] == "Seq Scan" and x["Actual Loops"]}

    @property
    def rows(self) -> int:
        """The rows of tables that were looked at, those that a filter threw away again included, in all loops."""
        return round(sum(_rows(x) for x in self.nodes() if "Scan" in x["Node Type"] and _of_a_table(x)))

    @property
    def buffers(self) -> int:
        """Pages of tables and indexes that were looked at, each as often as it was."""
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    @property
    def returned(self) -> int:
        """The rows of the result."""
        return int(self.root["Actual Rows"] * self.root["Actual Loops"])

    def __str__(self) -> str:
        return "\n".join(_lines(self.root, 0))


def explain(
    connection: Connection, statement: Executable, parameters: Mapping[str, Any], *, generic: bool = False
) -> Plan:
    """Execute the statement as a prepared one, with a plan for these parameters or with the generic plan.

    What it writes is undone.
    """
    compiled: Any = statement.compile(dialect=DIALECT, column_keys=list(parameters))  # type: ignore[attr-defined]
    values = compiled.construct_params(dict(parameters))
    raw = connection.connection.driver_connection
    given = ", ".join(Literal(values[name]).as_string(raw) for name in compiled.positiontup)
    # as the driver does: a number has a type, and what is sent as text has that of its place
    types = ["float8" if isinstance(values[name], float) else "unknown" for name in compiled.positiontup]
    typed = f"({', '.join(types)})" if types else ""
    mode = "force_generic_plan" if generic else "force_custom_plan"
    savepoint = connection.begin_nested()
    try:
        _run(connection, f"set local plan_cache_mode = {mode}")
        _run(connection, f"prepare explained {typed} as {compiled.string}")
        found = _run(connection, f"explain (analyze, buffers, timing off, format json) execute explained({given})")
        return Plan(found.scalar_one()[0]["Plan"])
    finally:
        savepoint.rollback()
        _run(connection, "deallocate all")  # a rollback does not


def _run(connection: Connection, sql: str) -> CursorResult[Any]:
    return connection.exec_driver_sql(sql, execution_options={"no_parameters": True})


def _of_a_table(node: dict[str, Any]) -> bool:
    return "Relation Name" in node or node["Node Type"] == "Bitmap Index Scan"


def _rows(node: dict[str, Any]) -> float:
    removed = sum(node.get(f"Rows Removed by {x}", 0) for x in ("Filter", "Index Recheck"))
    return float((node["Actual Rows"] + removed) * node["Actual Loops"])


def _lines(node: dict[str, Any], depth: int) -> Iterator[str]:
    what = " ".join(str(node[x]) for x in ("Node Type", "CTE Name", "Relation Name", "Index Name") if x in node)
    name = node.get("Subplan Name")
    removed = node.get("Rows Removed by Filter", 0)
    buffers = node.get("Shared Hit Blocks", 0) + node.get("Shared Read Blocks", 0)
    line = f"{what}: {node['Actual Rows']} rows x {node['Actual Loops']}, {removed} removed, {buffers} buffers"
    yield "  " * depth + (f"[{name}] " if name else "") + line
    for key in ("Index Cond", "Filter", "Recheck Cond"):
        if key in node:
            yield "  " * (depth + 2) + f"{key}: {node[key]}"
    for child in node.get("Plans", ()):
        yield from _lines(child, depth + 1)
