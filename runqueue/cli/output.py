"""How things are printed: JSON for programs, tables on a terminal, lines with tabs elsewhere.

Whatever was stored by others is shown so that it cannot move the cursor, recolour the screen or reorder a line.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from runqueue.types import Event, Run, Undecodable

LONGEST = 2000
"""How many characters of a value are shown on a terminal."""

_UNSAFE = re.compile(
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e0fff]"
)
"""Controls, lone surrogates, and what is invisible or changes the direction; not the joiners, which emoji need."""
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def visible(text: str) -> str:
    """The text in one line, with what is unsafe on a terminal as escapes."""
    return _UNSAFE.sub(lambda match: _SHORT.get(match[0]) or _escape(match[0]), text)


def to_json(value: Any, *, indent: int | None = None) -> str:
    """JSON with the same meaning whatever the terminal: readable where that is safe, escaped where it is not."""
    readable = (getattr(sys.stdout, "encoding", None) or "").lower().startswith("utf")
    text = json.dumps(value, default=_plain, ensure_ascii=not readable, indent=indent)
    return _UNSAFE.sub(lambda match: match[0] if match[0] == "\n" else _json_escape(match[0]), text)


def document(value: Any) -> None:
    """Print one JSON document: indented on a terminal, in one line elsewhere."""
    click.echo(to_json(value, indent=2 if on_terminal() else None))


def json_line(value: Any) -> None:
    """Print a JSON value in one line."""
    click.echo(to_json(value))


def line(*cells: Any) -> None:
    """Print values in one line: separated by tabs, by two spaces on a terminal."""
    click.echo(("  " if on_terminal() else "\t").join(cell(x) for x in cells))


def note(text: str) -> None:
    """Tell people something, on stderr."""
    click.echo(visible(text), err=True)


def table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table on a terminal; elsewhere a line a row, without the headings."""
    cells = [[cell(x) for x in row] for row in rows]
    if not on_terminal():
        for row in cells:
            click.echo("\t".join(row))
        return
    try:
        _rich(headings, cells)
    except ImportError:
        _aligned([[x.upper() for x in headings], *cells])


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and their values, a line each. On a terminal long values are cut, and absent ones left out."""
    if not on_terminal():
        for name, value in pairs:
            line(name, value)
        return
    shown = [[name, cell(value)] for name, value in pairs if value is not None]
    _aligned([[name, x if len(x) <= LONGEST else f"{x[:LONGEST]}… (all of it with --json)"] for name, x in shown])


def cell(value: Any) -> str:
    """A value in one safe line."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    if isinstance(value, (dict, list, bool, Undecodable)):
        return to_json(value)
    return visible(f"{value:.1f}" if isinstance(value, float) else str(value))


def run_as_json(run: Run, *, holder: bool = False) -> dict[str, Any]:
    """A run as its JSON object; with `holder` it says which worker has it."""
    return {x.name: getattr(run, x.name) for x in fields(Run) if holder or x.name != "locked_by"}


def event_as_json(event: Event) -> dict[str, Any]:
    """An event as its JSON object."""
    return {x.name: getattr(event, x.name) for x in fields(Event)}


def on_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def _rich(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for index, heading in enumerate(headings):
        made.add_column(heading, no_wrap=index == 0, overflow="fold")
    for row in rows:
        made.add_row(*(Text(x) for x in row))  # as Text: a tenant may be called [red]
    Console().print(made)


def _aligned(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))] if rows else []
    for row in rows:
        click.echo("  ".join(x.ljust(width) for x, width in zip(row, widths, strict=True)).rstrip())


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Undecodable):
        return {"undecodable": value.reason}
    raise TypeError(f"no JSON for {type(value).__name__}")


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escape(character: str) -> str:
    return json.dumps(character)[1:-1] if character != "\x7f" else "\\u007f"
