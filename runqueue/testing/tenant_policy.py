"""What every tenant policy must keep."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import pytest

from runqueue.queue import RunQueue
from runqueue.testing.plans import Plan
from runqueue.testing.rig import Rig, together
from runqueue.testing.suite import PluginSuite
from runqueue.types import ClaimedRun

CROWD = """
insert into runqueue.agent_runs (id, tenant_id, kind, priority, available_at)
select ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
       case when n > 10000 then 'small-' || n else '{tenant}' end, 'alpha', 5, now() - interval '1 day'
from generate_series(1, 10300) n
"""
ROWS, BUFFERS = 3000, 12000


class Share(NamedTuple):
    """What a tenant is to get: `weight` beside the others', at most `cap` runs in flight, None for no cap."""

    weight: float = 1.0
    cap: int | None = None


class TenantPolicySuite(PluginSuite):
    """Tenants with work share by weight, and no tenant passes its cap. Say what the policy gives to whom: `shares`."""

    shares: ClassVar[Mapping[str, Share]] = {
        "ant": Share(1, 2),
        "bee": Share(3, 4),
        "cat": Share(1),
        "dog": Share(2),
        "eel": Share(4),
    }
    """Tenants by name; at least two without a cap. Caps above 0, and not above 20."""

    def arrange(self, queue: RunQueue) -> None:
        """Give the tenants of `shares` their weights and caps; override it where the policy knows them by itself."""
        for name, share in self.shares.items():
            queue.set_tenant(name, weight=share.weight, cap=share.cap)

    def serve(self, queue: RunQueue, claimed: ClaimedRun) -> float:
        """Work one run, and say how much of its tenant's share that took. By default a run is a run."""
        queue.complete(claimed.lease)
        return 1.0

    # ----------------------------------------------------------------------------------------------------------- caps

    def test_no_cap_is_passed_by_eight_claimers(self, rig: Rig) -> None:
        """They claim at the same moment, and end their runs in every way while the others claim."""
        self.arrange(rig.queue)
        self._backlog(rig, 40)
        queues = [rig.another() for _ in range(8)]
        barrier = threading.Barrier(8)

        def claimer(n: int) -> None:
            chance, mine = random.Random(n), list[ClaimedRun]()
            try:
                for _ in range(5):
                    barrier.wait(30)
                    mine += queues[n].claim(f"w{n}", limit=5)
                    self._check_caps(rig)
                    barrier.wait(30)
                    while len(mine) > 1:
                        _end(rig, queues[n], mine.pop(), chance.choice(["complete", "fail", "release", "expire"]))
                        self._check_caps(rig)
                    queues[n].reap()
            except BaseException:
                barrier.abort()
                raise

        together(8, claimer)

    def test_every_end_of_a_run_frees_its_slot_once(self, rig: Rig) -> None:
        """Completed, failed, given back, cancelled or lost: then one more run of the tenant is claimed, not two."""
        name, share = self._capped()
        self.arrange(rig.queue)
        rig.fill((share.cap or 0) + 30, tenant_id=name)
        held = [x for batch in rig.take(rig.queue) for x in batch]
        assert len(held) == share.cap
        for end in ("complete", "fail", "release", "cancel", "expire", "complete"):
            _end(rig, rig.queue, held.pop(0), end)
            rig.queue.reap()
            got = [x for batch in rig.take(rig.another()) for x in batch]
            assert len(got) == 1, f"after {end}, {len(got)} runs were claimed"
            held += got

    @pytest.mark.parametrize("claim", ["reaper", "takeover"])
    def test_lost_runs_of_a_capped_tenant_are_recovered(self, rig: Rig, claim: str) -> None:
        """All its slots are held by lost workers; four others sweep and claim at once until all is done."""
        name, share = self._capped()
        self.arrange(rig.queue)
        made = rig.fill((share.cap or 0) + 8, tenant_id=name)
        lost = [x for batch in rig.take(rig.another(claim=claim)) for x in batch]
        assert len(lost) == share.cap
        rig.faults.expire(*(x.lease for x in lost))
        queues = [rig.another(claim=claim) for _ in range(4)]
        done = Counter[object]()

        def worker(n: int) -> None:
            for _ in range(200):
                queues[n].reap()
                claimed = queues[n].claim(f"w{n}", limit=2)
                self._check_caps(rig)
                for one in claimed:
                    queues[n].complete(one.lease)
                    done[one.run.id] += 1
                if len(done) == len(made):
                    return

        together(4, worker)
        assert done == dict.fromkeys((x.id for x in made), 1)

    def test_a_tenant_at_its_cap_keeps_nobody_waiting(self, rig: Rig) -> None:
        """A thousand of its runs are first in the claim order; the others' are claimed within some few claims."""
        name, share = self._capped()
        others = [x for x in self.shares if x != name]
        self.arrange(rig.queue)
        rig.fill((share.cap or 0), tenant_id=name)
        rig.take(rig.queue)
        rig.fill(1000, tenant_id=name, priority=9)
        rig.fill(len(others), tenant_id=lambda n: others[n])
        queue = rig.another()
        got = [x.run.tenant_id for _ in range(2 * len(others)) for x in queue.claim("w", limit=len(others))]
        assert sorted(got) == sorted(others)

    # --------------------------------------------------------------------------------------------------------- shares

    def test_shares_are_as_the_weights(self, rig: Rig) -> None:
        """Within 10 % over 200 runs, of tenants that all have work."""
        free = {x: y for x, y in self.shares.items() if y.cap is None}
        if len(free) < 2:
            pytest.skip("fewer than two tenants without a cap")
        self.arrange(rig.queue)
        names = list(free)
        rig.fill(200 * len(names), tenant_id=lambda n: names[n % len(names)])
        taken = dict.fromkeys(free, 0.0)
        count = 0
        while count < 200:
            for claimed in rig.queue.claim("w", limit=min(2, 200 - count)):
                taken[claimed.run.tenant_id] += self.serve(rig.queue, claimed)
                count += 1
        total, weights = sum(taken.values()), sum(x.weight for x in free.values())
        for name, share in free.items():
            fair = share.weight / weights
            assert abs(taken[name] / total - fair) <= 0.1 * fair, f"{taken}, {name} should have {fair:.1%}"

    def test_what_a_tenant_cannot_use_others_get(self, rig: Rig) -> None:
        """One tenant with work gets all, however small its share; and each with a cap gets to its cap."""
        self.arrange(rig.queue)
        smallest = min((x for x in self.shares if self.shares[x].cap is None), key=lambda x: self.shares[x].weight)
        rig.fill(10, tenant_id=smallest)
        assert len(rig.queue.claim("w", limit=10)) == 10
        self._backlog(rig, 30)
        rig.take(rig.another(), limit=50)
        expected = {x: 30 if y.cap is None else y.cap for x, y in self.shares.items()}
        expected[smallest] += 10
        assert rig.in_flight() == expected

    def test_a_tenant_that_nobody_named_is_served(self, rig: Rig) -> None:
        """A tenant has no row before somebody gives it one; all that the policy sees of it is then NULL."""
        self.arrange(rig.queue)
        self._backlog(rig, 5)
        rig.fill(2, tenant_id="nobody-named-it")
        rig.take(rig.queue)
        assert rig.in_flight().get("nobody-named-it", 0) > 0

    # ----------------------------------------------------------------------------------------------------------- cost

    def test_a_claim_costs_its_batch(self, rig: Rig) -> None:
        """Not what tenants there are, nor the 10,000 runs of one of them that is at its cap."""
        name, _ = self._capped()
        self.arrange(rig.queue)
        rig.load(CROWD.format(tenant=name))
        found: list[Plan] = [x for y in rig.plans(rig.another(), limit=10, kinds=["alpha"]) for x in y]
        for plan in found:
            assert plan.rows <= ROWS, f"{plan.rows} rows were looked at:\n{plan}"
            assert plan.buffers <= BUFFERS, f"{plan.buffers} buffers were looked at:\n{plan}"

    def _capped(self) -> tuple[str, Share]:
        found = [(x, Share(*y)) for x, y in self.shares.items() if y.cap is not None]
        if not found:
            pytest.skip("no tenant has a cap")
        return found[0]

    def _backlog(self, rig: Rig, each: int) -> None:
        names = list(self.shares)
        rig.fill(each * len(names), tenant_id=lambda n: names[n % len(names)], max_attempts=50)

    def _check_caps(self, rig: Rig) -> None:
        flying = rig.in_flight()
        over = {x: flying[x] for x, y in self.shares.items() if y.cap is not None and flying.get(x, 0) > y.cap}
        assert not over, f"in flight {over}, though the shares are {self.shares}"


def _end(rig: Rig, queue: RunQueue, claimed: ClaimedRun, how: str) -> None:
    if how == "complete":
        queue.complete(claimed.lease)
    elif how == "fail":
        queue.fail(claimed.lease, "boom", delay=3600)
    elif how == "release":
        queue.release(claimed.lease, delay=3600)
    elif how == "cancel":
        queue.cancel(claimed.run.id)
        queue.settle_cancelled(claimed.lease)
    else:
        rig.faults.expire(claimed.lease)
