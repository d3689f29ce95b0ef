"""Where a process is on its way around the tenants: in its own memory, for any place is fair in the long run."""

from __future__ import annotations

import random
import string
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

CURRENT = 0.5
"""How long turns that were looked up may be used, in seconds: so long a tenant that is new may wait for its first."""


@dataclass(frozen=True, slots=True)
class Turn:
    """So many runs of a tenant, in a revolution of the walk."""

    tenant_id: str
    cap: int | None
    revolution: int
    quota: int


@dataclass(slots=True)
class Walk:
    """One way around: the turns that were looked up, and where the next look begins.

    `after` is the tenant of the last turn that was taken, `credit` what is left of that turn. Not safe to share between
    threads but under its `lock`.
    """

    after: str
    revolution: int = 0
    credit: int = 0
    fruitless: int = 0
    """Looks in a row that found no turn because they did not get round: the next one goes on from there."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    _turns: deque[Turn] = field(default_factory=deque)
    _until: float = 0.0

    def is_current(self, batch: int) -> bool:
        """Whether there are turns for so many runs that were looked up not long ago."""
        return time.monotonic() < self._until and sum(turn.quota for turn in self._turns) >= batch

    def looked(self, turns: Sequence[Turn], end: str, revolution: int, *, complete: bool) -> None:
        """Take over what a look found; where that is nothing, the next one begins where it ended."""
        self._turns, self._until = deque(turns), time.monotonic() + CURRENT
        if not turns:
            self.after, self.revolution, self.credit = end, revolution, 0
        self.fruitless = 0 if turns or complete else self.fruitless + 1

    def take(self, batch: int) -> list[Turn]:
        """The next turns, of at most `batch` runs."""
        taken: list[Turn] = []
        while batch and self._turns:
            turn = self._turns.popleft()
            part = replace(turn, quota=min(turn.quota, batch))
            self.after, self.revolution, self.credit = turn.tenant_id, turn.revolution, turn.quota - part.quota
            if self.credit:
                self._turns.appendleft(replace(turn, quota=self.credit))
            taken.append(part)
            batch -= part.quota
        return taken

    def forget(self) -> None:
        """Look again before the next turn is taken."""
        self._until = 0.0


class Walks:
    """The walks of one process, by what they go through. Each begins anywhere, so that processes spread out."""

    MOST = 1000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._walks: dict[object, Walk] = {}

    def of(self, key: object) -> Walk:
        """The walk through these lanes."""
        with self._lock:
            if key not in self._walks:
                if len(self._walks) >= self.MOST:
                    self._walks.clear()
                self._walks[key] = Walk(random.choice(string.digits + string.ascii_lowercase))
            return self._walks[key]

    @property
    def fruitless(self) -> int:
        """How many looks in a row, at most over all walks, found nobody because they did not get round."""
        with self._lock:
            return max((x.fruitless for x in self._walks.values()), default=0)
