"""What every operation needs to know of its queue."""

from __future__ import annotations

import hashlib
import random
import string
import threading
from dataclasses import dataclass, field
from functools import cached_property

from runqueue.decisions import CheckpointStore, ClaimOrder, KeepLast, TenantPolicy
from runqueue.hooks.manager import Hooks
from runqueue.policies import ClaimPolicy
from runqueue.schema.tables import Tables
from runqueue.settings import Settings


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a walk around the tenants stopped: at whom, in which revolution, and how much of its turn was left."""

    after: str
    revolution: int = 0
    credit: int = 0


class Walks:
    """The walks of one process, by what they go through. A new one begins anywhere, so that processes spread out."""

    MOST = 1000

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._walks: dict[object, Walk] = {}
        self.fruitless = 0
        """Claims in a row that found nothing because they did not get round yet: the next one goes on from there."""
        self.agreed = False
        """Whether the install's rules were compared with this process's configuration."""

    def of(self, key: object) -> Walk:
        """Where a walk goes on."""
        with self._lock:
            return self._walks.get(key) or Walk(random.choice(string.digits + string.ascii_lowercase))

    def moved(self, key: object, walk: Walk) -> None:
        """Remember where a walk stopped."""
        with self._lock:
            if len(self._walks) >= self.MOST:
                self._walks.clear()
            self._walks[key] = walk


@dataclass(frozen=True, eq=False)
class Context:
    """The tables, rules and settings of one queue; immutable but for its walks, shared by all threads."""

    t: Tables
    settings: Settings
    hooks: Hooks
    policy: ClaimPolicy
    order: ClaimOrder
    tenants: TenantPolicy | None
    store: CheckpointStore | KeepLast
    walks: Walks = field(default_factory=Walks)
    patient: bool = True
    """Whether settling a run waits while another transaction has it locked; a worker has other runs to care for."""

    @cached_property
    def channel(self) -> str:
        """The NOTIFY channel of the install."""
        return f"runqueue_{self.t.schema}"


def work_hint(queue: str) -> str:
    """The wake-up for a queue: a hash, because any role of the database may listen, and names may be long or secret."""
    return "work:" + hashlib.blake2s(queue.encode(), digest_size=6).hexdigest()


STOP_HINT = "stop"
"""The wake-up for a requested cancel: workers renew their leases now, and hear of it."""
