"""Where a process is on its way around the tenants: in its own memory, for any place is fair in the long run."""

from __future__ import annotations

import random
import string
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

CURRENT = 0.5
"""How long turns that were looked up may be used, in seconds: so long a tenant that is new may wait for its first."""


@dataclass(frozen=True, slots=True)
class Turn:
    """So many runs of a tenant, in a revolution of the walk."""

    tenant_id: str
    cap: int | None
    revolution: int
    quota: int


@dataclass(frozen=True, slots=True)
class Place:
    """Where a look begins: after a tenant's turn in a revolution, of which `credit` is left."""

    after: str
    revolution: int = 0
    credit: int = 0


@dataclass(frozen=True, slots=True)
class End:
    """Where a look ended, and whether it went all the way round."""

    place: Place
    complete: bool


class Walk:
    """One way around: the turns that were looked up, and where the next look begins.

    Safe to share between threads, and between coroutines: no lock is held but for the length of a method.
    """

    def __init__(self, after: str) -> None:
        self.place = Place(after)
        self.fruitless = 0
        """Looks in a row that found no turn because they did not get round: the next one goes on from there."""
        self._lock = threading.Lock()
        self._turns: deque[Turn] = deque()
        self._until = 0.0

    def take(self, batch: int) -> list[Turn] | None:
        """The next turns, of `batch` runs; None where there are not so many that were looked up not long ago."""
        with self._lock:
            return self._take(batch) if self._is_current(batch) else None

    def looked(self, turns: Sequence[Turn], end: End, batch: int) -> list[Turn]:
        """Take over what a look found, and take the next turns; who looked meanwhile, and found enough, was first."""
        with self._lock:
            if not self._is_current(batch):
                self._turns, self._until = deque(turns), time.monotonic() + CURRENT
                if not turns:
                    self.place = end.place
                self.fruitless = 0 if turns or end.complete else self.fruitless + 1
            return self._take(batch)

    def forget(self) -> None:
        """Look again before the next turn is taken."""
        with self._lock:
            self._until = 0.0

    def _is_current(self, batch: int) -> bool:
        return time.monotonic() < self._until and sum(turn.quota for turn in self._turns) >= batch

    def _take(self, batch: int) -> list[Turn]:
        taken: list[Turn] = []
        while batch and self._turns:
            turn = self._turns.popleft()
            part = replace(turn, quota=min(turn.quota, batch))
            left = turn.quota - part.quota
            self.place = Place(turn.tenant_id, turn.revolution, left)
            if left:
                self._turns.appendleft(replace(turn, quota=left))
            taken.append(part)
            batch -= part.quota
        return taken


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
