"""What every checkpoint store must keep."""

from __future__ import annotations

from typing import Any

import pytest

from runqueue.errors import InvalidRun, LeaseLost
from runqueue.queue import RunQueue
from runqueue.testing.rig import Rig
from runqueue.testing.suite import PluginSuite
from runqueue.types import Lease

MIB = 1024 * 1024
STATES: list[Any] = [
    {"turn": 1, "messages": [{"role": "user", "content": "Grüße, 世界 🐘 \u2028 \\ \" ' % :x {y} $1"}]},
    [], {}, "", 0, False, [None, True, -1, 1.5, 2**63, 10**20],
    {"": {"a" * 300: [[[[[{}]]]]]}},
]  # fmt: skip


class CheckpointStoreSuite(PluginSuite):
    """What was saved last in a commit is what the next attempt begins with, whatever happened in between."""

    def test_the_newest_state_is_the_next_attempts(self, rig: Rig) -> None:
        """Of several saved in one attempt and in several."""
        rig.fill(1, max_attempts=10)
        for attempt in range(3):
            [claimed] = rig.queue.claim("w")
            assert claimed.checkpoint == ({"step": f"{attempt - 1}.2"} if attempt else None)
            for step in range(3):
                save(rig.queue, claimed.lease, {"step": f"{attempt}.{step}"})
            rig.queue.fail(claimed.lease, "next")

    def test_a_state_comes_back_as_it_was(self, rig: Rig) -> None:
        """Texts of all sorts, numbers, nesting, and what is empty but not nothing."""
        for state in STATES:
            rig.fill(1, max_attempts=10)
            [claimed] = rig.queue.claim("w")
            save(rig.queue, claimed.lease, state)
            rig.queue.fail(claimed.lease, "next")
            [again] = rig.queue.claim("w")
            assert again.checkpoint == state
            assert type(again.checkpoint) is type(state)
            rig.queue.complete(again.lease)

    def test_runs_have_their_own_states(self, rig: Rig) -> None:
        """Where some of a batch have one and others none."""
        rig.fill(6)
        for n, one in enumerate(rig.queue.claim("w", limit=6)):
            if n % 3:
                save(rig.queue, one.lease, str(one.run.id))
            rig.queue.release(one.lease)
        claimed = rig.another().claim("w", limit=6)
        assert sum(x.checkpoint is None for x in claimed) == 2
        assert all(x.checkpoint in (None, str(x.run.id)) for x in claimed)

    def test_a_zombie_leaves_nothing(self, rig: Rig) -> None:
        """A state that is saved under a lost lease is undone with its transaction."""
        rig.fill(1)
        [stale] = rig.queue.claim("zombie")
        save(rig.queue, stale.lease, "first")
        rig.faults.expire(stale.lease)
        [newest] = rig.rescue(rig.another())
        assert newest.checkpoint == "first"
        with pytest.raises(LeaseLost):
            save(rig.queue, stale.lease, "of the dead")
        rig.queue.release(newest.lease)
        [last] = rig.another().claim("w")
        assert last.checkpoint == "first"

    def test_a_state_survives_a_killed_worker(self, rig: Rig) -> None:
        """What was committed; what was not committed does not."""
        [run] = rig.fill(1, kind="victim")
        rig.faults.kill_worker(self, "commit", ({"committed": True}, {"committed": False}))
        rig.faults.expire(rig.lease_of(run))
        [again] = rig.rescue(rig.queue, kinds=["victim"])
        assert again.checkpoint == {"committed": True}

    def test_a_state_may_be_as_large_as_the_limit(self, rig: Rig) -> None:
        """And one that is larger is refused, and the one before it stays. Looked at up to a MiB."""
        limit = rig.queue.core.ctx.store.limit
        large = "x" * (min(limit, MIB) - 2)
        rig.fill(1)
        [claimed] = rig.queue.claim("w")
        save(rig.queue, claimed.lease, large)
        if limit <= MIB:
            with pytest.raises(InvalidRun):
                save(rig.queue, claimed.lease, large + "x")
        rig.queue.release(claimed.lease)
        [again] = rig.queue.claim("w")
        assert again.checkpoint == large


def save(queue: RunQueue, lease: Lease, state: Any) -> None:
    """Save a state in a fenced transaction of its own."""
    with queue.transaction(lease) as tx:
        tx.save_checkpoint(state)
