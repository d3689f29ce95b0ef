"""Who is served, and how often: shares by weight, whatever the batches; what one cannot use, others get."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from fairness.flights import jain
from sqlalchemy import text

from runqueue import NewRun


def enqueue(queue, **waiting):
    queue.enqueue_many(NewRun(kind="k", tenant_id=name) for name, n in waiting.items() for _ in range(n))


def served(queue, total, batch=1, **options):
    """Claim so many runs, a batch at a time; by tenant."""
    found = Counter()
    while (left := total - found.total()) > 0:
        claimed = queue.claim("w", limit=min(batch, left), **options)
        assert claimed, f"nothing left after {found}"
        found.update(x.run.tenant_id for x in claimed)
    return found


@pytest.mark.parametrize("batch", [1, 3, 20])
@pytest.mark.parametrize("kinds", [["k"], None])
def test_equal_tenants_get_equal_shares_of_a_burst(fair, batch, kinds):
    enqueue(fair, whale=200, a=40, b=40, c=40)
    assert set(served(fair, 120, batch, kinds=kinds).values()) == {30}


@pytest.mark.parametrize("batch", [1, 7, 26])
def test_weights_come_out_exactly(fair, batch):
    weights = {"a": 4.0, "b": 2.0, "c": 1.0, "d": 0.5}
    enqueue(fair, **dict.fromkeys(weights, 150))
    for name, weight in weights.items():
        fair.set_tenant(name, weight=weight)
    shares = served(fair, 150, batch)
    for name, weight in weights.items():
        assert abs(shares[name] - 150 * weight / 7.5) <= weight + 1, shares


def test_weights_can_be_changed_while_runs_wait(fair):
    enqueue(fair, a=200, b=200)
    assert served(fair, 40, 4) == {"a": 20, "b": 20}
    fair.set_tenant("a", weight=3)
    shares = served(fair, 80, 4)
    assert abs(shares["a"] - 60) <= 4


def test_unused_shares_go_to_who_can_use_them(fair):
    enqueue(fair, whale=100, small=3)
    fair.set_tenant("small", weight=100)
    assert served(fair, 40, 20) == {"whale": 37, "small": 3}
    assert served(fair, 63, 20) == {"whale": 63}


def test_a_light_tenant_alone_gets_everything(fair):
    enqueue(fair, a=50)
    fair.set_tenant("a", weight=0.01)
    assert served(fair, 50, 20) == {"a": 50}


def test_late_tenants_wait_for_one_turn_of_the_others_not_for_their_backlog(fair):
    enqueue(fair, whale=1000)
    served(fair, 100, 20)
    enqueue(fair, **{f"late{n}": 1 for n in range(10)})
    assert {f"late{n}" for n in range(10)} <= served(fair, 22, 1).keys()


def test_within_a_tenant_the_claim_order_counts(make, fair):
    for priority in (1, 3, 2):
        fair.enqueue("k", priority, tenant_id="a", priority=priority)
        fair.enqueue("k", priority, tenant_id="b", priority=priority)
    order = [x.run for _ in range(6) for x in fair.claim("w")]
    for name in "ab":
        assert [x.input for x in order if x.tenant_id == name] == [3, 2, 1]


def test_aging_and_fairness_go_together(make, fair):
    fair.set_rule("claim_order", None)
    queue = make("aging", "fairness")
    now = "clock_timestamp() - interval '1 s' * "
    for priority, waited in ((0, 700), (5, 100), (9, 10)):
        for name in "ab":
            run = queue.enqueue("k", priority, tenant_id=name, priority=priority)
            with queue.engine.begin() as connection:
                set_time = f"update runqueue.agent_runs set available_at = {now} {waited} where id = :id"
                connection.execute(text(set_time), {"id": run.id})
    order = [x.run for _ in range(6) for x in queue.claim("w")]
    for name in "ab":
        assert [x.input for x in order if x.tenant_id == name] == [0, 9, 5]


def test_runs_of_other_lanes_give_nobody_a_turn(fair):
    enqueue(fair, a=5, b=5)
    fair.enqueue("other", tenant_id="c")
    fair.enqueue("k", tenant_id="d", queue="elsewhere")
    fair.enqueue("k", tenant_id="e", delay=60)
    fair.pause("default", "paused")
    fair.enqueue("paused", tenant_id="f")
    assert served(fair, 10, 4, kinds=["k", "paused"]).keys() == {"a", "b"}
    assert fair.claim("w", limit=10, kinds=["k", "paused"]) == []


def test_tenants_with_nothing_due_are_passed_over(fair):
    enqueue(fair, zz=3)
    fair.enqueue_many(NewRun(kind="k", tenant_id=f"later{n:04}", delay=3600) for n in range(900))
    assert served(fair, 3, 1) == {"zz": 3}


def test_a_due_run_behind_runs_of_a_higher_priority_that_are_not_is_found(fair):
    fair.enqueue("k", tenant_id="a", priority=9, delay=3600)
    run = fair.enqueue("k", tenant_id="a", priority=1)
    assert [x.run.id for x in fair.claim("w", limit=5)] == [run.id]


@pytest.mark.parametrize("policy", ["reaper"], indirect=True)
def test_four_claimers_that_know_nothing_of_each_other_are_fair(make, fair):
    names = [f"t{n:02}" for n in range(40)]
    enqueue(fair, whale=1000, **dict.fromkeys(names, 60))

    def claimer(_):
        queue, found = make(), Counter()
        for _ in range(25):
            found.update(x.run.tenant_id for x in queue.claim("w", limit=20))
        return found

    with ThreadPoolExecutor(4) as pool:
        shares = sum(pool.map(claimer, range(4)), Counter())
    assert shares.total() > 1900
    assert jain(Counter({x: shares[x] for x in [*names, "whale"]})) >= 0.99


@pytest.mark.parametrize("name", ["x'y\"z", "日本語", "a%b:c", "x" * 255, "\u202eabc", "O'Brien; drop table"])
def test_odd_names_have_turns_caps_and_weights(fair, name):
    fair.enqueue("k", tenant_id=name)
    fair.enqueue("k", tenant_id=name)
    fair.set_tenant(name, weight=2, cap=1)
    assert [x.run.tenant_id for x in fair.claim("w", limit=5)] == [name]
    assert fair.claim("w", limit=5) == []
