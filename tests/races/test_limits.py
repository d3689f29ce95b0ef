"""A limit of n touches n rows, whatever the planner believes and whatever it may not use."""

from __future__ import annotations

import pytest
from conformance.driver import expire
from sqlalchemy import create_engine, text

from runqueue import NewRun, RunQueue

OFF = [
    "hashjoin",
    "mergejoin",
    "indexscan",
    "indexonlyscan",
    "bitmapscan",
    "hashagg",
    "sort",
    "material",
    "nestloop",
    "seqscan",
    "memoize",
]
PLANS = {"default": [], "none of them": OFF[:8], **{name: [name] for name in OFF}}
ROWS = 200


FAST = {"default", "none of them", "indexscan", "nestloop"}


@pytest.fixture(params=[x if x in FAST else pytest.param(x, marks=pytest.mark.slow) for x in PLANS])
def hostile(request, engine, policy, settings):
    options = " ".join(f"-cenable_{name}=off" for name in PLANS[request.param])
    made = create_engine(engine.url, connect_args={"options": f"{options} -cplan_cache_mode=force_generic_plan"})
    yield RunQueue(made, claim=policy, settings=settings)
    made.dispose()


@pytest.fixture(params=["never analyzed", "deleted statistics"])
def filled(request, engine, queue):
    with engine.begin() as connection:
        connection.execute(text("alter table runqueue.agent_runs set (autovacuum_enabled = off)"))
    queue.enqueue_many(NewRun(kind="ab"[n % 2], tenant_id="t", max_attempts=2) for n in range(ROWS))
    if request.param == "deleted statistics":
        with engine.begin() as connection:
            connection.execute(text("analyze runqueue.agent_runs"))
            connection.execute(text("delete from pg_statistic where starelid = 'runqueue.agent_runs'::regclass"))


def count(facts, where):
    return facts.sql(f"select count(*) from runqueue.agent_runs where {where}")[0][0]


def test_every_batch_touches_exactly_its_rows(hostile, filled, facts, policy):
    taken = 0
    for kinds in (None, ["a", "b"], ["a"]):
        for limit in (1, 5):
            batch = hostile.claim("w", kinds=kinds, limit=limit)
            taken += limit
            assert len(batch) == limit
            assert count(facts, "status = 'leased'") == taken
    leases = [x.lease for x in hostile.claim("w", limit=50)]
    [[before]] = facts.sql("select max(n) from runqueue_audit.audit")

    def touched():
        return facts.sql("select count(*) from runqueue_audit.audit where n > :n", n=before)[0][0]

    hostile.heartbeat(leases[:7])
    assert touched() == 7
    hostile.complete_many((x, None) for x in leases[:5])
    assert (touched(), count(facts, "status = 'done'")) == (12, 5)
    expire(facts, *leases[10:40])

    def newly(act):
        [[start]] = facts.sql("select max(n) from runqueue_audit.audit")
        return act(), facts.sql("select count(*) from runqueue_audit.audit where n > :n", n=start)[0][0]

    if policy == "takeover":
        for limit, kinds in ((1, None), (5, None), (1, ["a", "b"]), (5, ["a", "b"])):
            batch, changed = newly(lambda limit=limit, kinds=kinds: hostile.claim("w", limit=limit, kinds=kinds))
            assert len(batch) == changed == limit
            assert {x.run.attempts for x in batch} == {2}
        facts.sql("update runqueue.agent_runs set max_attempts = 1 where locked_until < now() and attempts = 1")
    for limit in (1, 5):
        swept, changed = newly(lambda limit=limit: hostile.reap(limit=limit))
        assert swept.total == changed == limit
    assert len(hostile.list(limit=9).runs) == 9
