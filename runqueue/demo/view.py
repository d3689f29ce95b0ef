"""What is shown while the fleet works: a table that follows the runs on a terminal, lines of text elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

STYLES = {"leased": "yellow", "done": "green", "dead": "red", "cancelled": "magenta", "pending": "dim"}


@dataclass(frozen=True)
class Line:
    """A run as it is shown."""

    name: str
    tenant: str
    kind: str
    status: str
    attempts: int
    worker: int | None
    steps: int


class View(Protocol):
    """Where the story is told."""

    def say(self, text: str) -> None:
        """Something happened."""

    def show(self, lines: Sequence[Line]) -> None:
        """This is how the runs are now."""


class PlainView:
    """One line for whatever changes. Goes to stderr; the verdict alone is output."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._seen: dict[str, tuple[str, int]] = {}

    def say(self, text: str) -> None:
        """Print it, with the seconds since the start."""
        print(f"{time.monotonic() - self._start:5.1f} s  {text}", file=sys.stderr, flush=True)

    def show(self, lines: Sequence[Line]) -> None:
        """Print the runs that have another status or attempt than before."""
        for line in lines:
            if self._seen.get(line.name) != (line.status, line.attempts):
                self._seen[line.name] = line.status, line.attempts
                by = f" by worker {line.worker}, attempt {line.attempts}" if line.worker else ""
                self.say(f"   {line.name} ({line.tenant}, {line.kind}): {line.status}{by}, {line.steps} steps")


class LiveView:
    """A table of the runs, and below it what happened last."""

    def __init__(self, live: Live) -> None:
        self._start = time.monotonic()
        self._live = live
        self._said: deque[str] = deque(maxlen=8)
        self._lines: Sequence[Line] = ()

    def say(self, text: str) -> None:
        """Add it below the table."""
        self._said.append(f"{time.monotonic() - self._start:5.1f} s  {text}")
        self._live.update(self._render())

    def show(self, lines: Sequence[Line]) -> None:
        """Redraw the table."""
        self._lines = lines
        self._live.update(self._render())

    def _render(self) -> Group:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table("run", "tenant", "kind", "status", "attempts", "worker", "steps", title="runqueue demo")
        for x in self._lines:
            status = Text(x.status, style=STYLES.get(x.status, ""))
            steps = f"{x.steps:>3} {'#' * min(x.steps, 24)}"
            plain = [Text(word) for word in (x.name, x.tenant, x.kind, str(x.attempts), str(x.worker or ""), steps)]
            table.add_row(*plain[:3], status, *plain[3:])
        return Group(table, *(Text(said) for said in self._said))


@contextmanager
def viewing(*, plain: bool) -> Iterator[View]:
    """The view that fits: the table needs a terminal and rich."""
    if plain or not sys.stderr.isatty() or find_spec("rich") is None:
        yield PlainView()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=8) as live:
        yield LiveView(live)
