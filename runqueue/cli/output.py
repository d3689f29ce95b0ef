"""How things are printed: JSON for programs, tables on a terminal, lines with tabs elsewhere.

Whatever was stored by others is shown so that it cannot move the cursor, recolour the screen or reorder a line.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import click

from runqueue.types import Event, Run, Undecodable

LONGEST = 2000
"""How many characters of a value are shown on a terminal."""

WIDE, NARROWEST = 120, 76
"""From how many characters a terminal gets all columns of a table, and the least that a table is made for."""

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


def table(
    headings: Sequence[str], rows: Iterable[Sequence[Any]], *, cut: Collection[str], wide: Collection[str] = ()
) -> None:
    """Print a table on a terminal; elsewhere a line a row, without the headings.

    The columns `wide` are for wide terminals, and those in `cut` lose what does not fit. No cell takes two lines.
    """
    cells = [[cell(x) for x in row] for row in rows]
    if not on_terminal():
        for row in cells:
            click.echo("\t".join(row))
        return
    width = max(shutil.get_terminal_size().columns, NARROWEST)
    shown = [n for n, heading in enumerate(headings) if width >= WIDE or heading not in wide]
    headings = [headings[n] for n in shown]
    fitted = _fitted([list(headings), *([row[n] for n in shown] for row in cells)], cut, width)
    try:
        _rich(fitted[0], fitted[1:], cut, width)
    except ImportError:
        _aligned([[x.upper() for x in fitted[0]], *fitted[1:]])


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


def shortened(text: str, length: int) -> str:
    """The text, or its beginning with an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _fitted(rows: list[list[str]], cut: Collection[str], width: int) -> list[list[str]]:
    """The rows, headings first, with the widest of the columns `cut` made narrower until a row fits."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flexible = [n for n, heading in enumerate(rows[0]) if heading in cut]
    excess = sum(widths) + 2 * (len(widths) - 1) - width
    for _ in range(excess):
        widest = max(flexible, key=lambda n: widths[n])
        if widths[widest] <= 4:
            break
        widths[widest] -= 1
    return [[shortened(x, length) for x, length in zip(row, widths, strict=True)] for row in rows]


def _rich(headings: Sequence[str], rows: Sequence[Sequence[str]], cut: Collection[str], width: int) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        made.add_column(Text(heading, no_wrap=True), no_wrap=heading not in cut, overflow="ellipsis")
    for row in rows:  # as Text: a tenant may be called [red]
        made.add_row(*(Text(x, no_wrap=True, overflow="ellipsis") for x in row))
    Console(width=width).print(made)


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
