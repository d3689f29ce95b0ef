"""What every operation needs to know of its queue."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event

from runqueue.decisions import CheckpointStore, ClaimOrder, KeepLast, TenantPolicy
from runqueue.hooks.manager import Hooks
from runqueue.operations.walk import Walks
from runqueue.policies import ClaimPolicy
from runqueue.schema.tables import Tables
from runqueue.settings import Settings


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
    agreed: Event = field(default_factory=Event)
    """Set once the install's rules were compared with this process's configuration."""
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
