"""What every claim order must keep."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from runqueue.testing.plans import Plan
from runqueue.testing.rig import Rig, ids
from runqueue.testing.suite import PluginSuite
from runqueue.types import Run

KINDS = ("alpha", "beta", "gamma")
LANES: dict[str, Any] = {"queues": ["one", "two"], "kinds": [*KINDS, "unknown"]}
DAY = datetime(2024, 1, 1, tzinfo=UTC)
TIMES = (0.0, 17.3, 61.7, 118.1, 181.9, 305.3)
"""Several runs become due at the same time; no two of the times are a round number of seconds apart."""

MANY = """
insert into runqueue.agent_runs (id, tenant_id, queue, kind, priority, available_at, created_at)
select ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'tenant-' || n * 7919 % 97, 'one',
       'alpha', n % 5 - 2, {available}, now() - interval '1 day' + n * interval '1 s'
from generate_series(1, 12000) n
"""
DUE = MANY.format(available="now() - interval '1 h' + n * 7919 % 12000 * interval '0.1 s'")
LATER = MANY.format(available="now() + interval '1 h' + n * interval '1 s'")
ROWS, BUFFERS = 1500, 3000
"""What a claim of ten may look at: of five levels, one batch or two each, in every lane."""


class ClaimOrderSuite(PluginSuite):
    """Claims follow an order that an index serves. Say which plugin orders, and by which `key`."""

    def key(self, run: Run) -> Any:
        """The sort key of a run, the first one first. No two runs may have the same: let it end with the `id`."""
        raise NotImplementedError("say by what the runs are ordered: def key(self, run): return (..., run.id)")

    @pytest.mark.parametrize("claim", ["reaper", "takeover"])
    def test_claims_follow_the_order(self, rig: Rig, claim: str) -> None:
        """Batch after batch over queues, kinds, priorities, tenants and times, under both claim policies."""
        expected = [x.id for x in sorted(self._mixed(rig), key=self.key)]
        assert self._claimed(rig, claim, **LANES) == expected

    def test_claims_of_any_kind_follow_the_order(self, rig: Rig) -> None:
        """Where a claim does not name the kinds that it takes."""
        expected = [x.id for x in sorted(self._mixed(rig), key=self.key)]
        assert self._claimed(rig, "reaper", queues=LANES["queues"]) == expected

    @pytest.mark.parametrize("claim", ["reaper", "takeover"])
    def test_runs_that_come_back_take_their_place(self, rig: Rig, claim: str) -> None:
        """Runs that failed or were given back are claimed by the order again, as what they now are."""
        self._mixed(rig)
        queue = rig.another(claim=claim)
        for n, one in enumerate(queue.claim("w", limit=20, **LANES)):
            queue.fail(one.lease, "boom") if n % 2 else queue.release(one.lease)
        waiting = [x for page in _pages(queue) for x in page]
        assert self._claimed(rig, claim, **LANES) == [x.id for x in sorted(waiting, key=self.key)]

    def test_an_index_serves_the_order(self, rig: Rig) -> None:
        """A claim of ten looks at some hundreds of 12,000 due runs at most."""
        rig.load(DUE)
        _check(rig)

    def test_runs_that_are_due_later_are_not_looked_at(self, rig: Rig) -> None:
        """However many there are, of every priority, older than the due ones, and in front of them by their ids."""
        rig.load(DUE)
        rig.load("truncate runqueue.agent_runs", LATER, analyze=False)  # the planner believes that all are due
        rig.fill(40, queue="one", priority=lambda n: n % 5 - 2)
        _check(rig)

    def _mixed(self, rig: Rig) -> list[Run]:
        chance = random.Random(7)
        made = rig.fill(
            60,
            kind=lambda _: chance.choice(KINDS),
            queue=lambda _: chance.choice(LANES["queues"]),
            priority=lambda _: chance.randint(-2, 2),
            tenant_id=lambda _: f"tenant-{chance.randint(1, 5)}",
            available_at=lambda _: DAY + timedelta(seconds=chance.choice(TIMES)),
        )
        rig.fill(5, queue="one", delay=3600, priority=9)
        return made

    def _claimed(self, rig: Rig, claim: str, **lanes: Any) -> list[Any]:
        queue = rig.another(claim=claim)
        return [x for batch in rig.take(queue, limit=7, **lanes) for x in ids(batch)]


def _pages(queue: Any) -> list[list[Run]]:
    page = queue.list(status="pending", limit=1000)
    return [[x for x in page.runs if x.available_at < datetime.now(UTC) + timedelta(minutes=5)]]


def _check(rig: Rig) -> None:
    found: list[Plan] = [x for pair in rig.plans(rig.another(), limit=10, **LANES) for x in pair]
    for plan in found:
        assert plan.rows <= ROWS, f"{plan.rows} rows were looked at:\n{plan}"
        assert plan.buffers <= BUFFERS, f"{plan.buffers} buffers were looked at:\n{plan}"
