"""Turns that were looked up for several claims at once give the same shares as those that are looked up for each."""

from __future__ import annotations

import asyncio

import pytest

from runqueue import AsyncRunQueue, NewRun
from runqueue.operations import walk


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_what_a_look_cuts_off_a_turn_is_given_later(fair, batch, monkeypatch):
    monkeypatch.setattr(walk, "CURRENT", 60.0)
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    fair.enqueue_many(NewRun(kind="k", tenant_id=name) for name in weights for _ in range(100))
    for name, weight in weights.items():
        fair.set_tenant(name, weight=weight)
    served = [x.run.tenant_id for _ in range(140 // batch) for x in fair.claim("w", limit=batch)]
    for name, weight in weights.items():
        assert abs(served.count(name) - 20 * weight) <= weight, served


async def test_claims_of_one_event_loop_do_not_wait_for_each_other(async_engine, policy, monkeypatch):
    """Two look their turns up at the same time: neither may keep the loop from the other's answer."""
    queue = AsyncRunQueue(async_engine, claim=policy, plugins=["fairness"])
    await queue.enqueue_many(NewRun(kind="k", tenant_id=name) for name in "abcd" for _ in range(10))
    async with asyncio.timeout(20):
        found = await asyncio.gather(*(queue.claim("w", limit=2) for _ in range(10)))
    claimed = [x.run.id for one in found for x in one]
    assert len(claimed) == len(set(claimed)) > 0


def test_a_lower_cap_counts_at_once_though_turns_were_looked_up(fair, monkeypatch):
    monkeypatch.setattr(walk, "CURRENT", 60.0)
    fair.enqueue_many(NewRun(kind="k", tenant_id=name) for name in "ab" for _ in range(40))
    held = [x.run.tenant_id for x in fair.claim("w", limit=4)]
    assert held.count("a") == 2
    fair.set_tenant("a", cap=3)
    held += [x.run.tenant_id for _ in range(8) for x in fair.claim("w", limit=4)]
    assert held.count("a") == 3
    fair.set_tenant("a", cap=1)
    assert {x.run.tenant_id for _ in range(2) for x in fair.claim("w", limit=2)} == {"b"}
