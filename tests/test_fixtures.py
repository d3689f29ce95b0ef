"""The fixtures hold what the suites rely on: a migrated database, both policies, and checks that bite."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool
from support.tools import age, autocommit, eventually, make_due, terminate_backends

from runqueue import LeaseLost, RunQueue, RunStatus


def test_a_life_under_each_policy(queue, engine, policy):
    run = queue.enqueue("k", {"n": 1}, tenant_id="t")
    [first] = queue.claim("w1", kinds=["k"])
    age(engine, run.id)
    queue.reap()
    [second] = queue.claim("w2", kinds=["k"])
    with pytest.raises(LeaseLost):
        queue.complete(first.lease, 1)
    queue.fail(second.lease, "boom")
    make_due(engine, run.id)
    [third] = queue.claim("w3", kinds=["k"])
    queue.complete(third.lease, {"ok": True})
    assert queue.get(run.id).status is RunStatus.DONE
    with engine.connect() as connection:
        log = connection.execute(text("select new_status from runqueue_audit.audit order by n")).scalars().all()
    taken_over = ["leased"] if policy == "takeover" else ["pending", "leased"]
    assert log == ["pending", "leased", "leased", *taken_over, "pending", "pending", "leased", "done"]


async def test_a_life_in_async(aqueue):
    run = await aqueue.enqueue("k", tenant_id="t")
    [claimed] = await aqueue.claim("w", kinds=["k"])
    await aqueue.complete(claimed.lease)
    assert (await aqueue.get(run.id)).status is RunStatus.DONE


def test_two_databases_know_nothing_of_each_other(url, blank_url):
    assert url != blank_url
    with autocommit(blank_url) as connection:
        assert connection.execute(text("select to_regclass('runqueue.agent_runs')")).scalar() is None


def test_a_commit_whose_answer_is_lost(proxy, url, settings):
    engine = create_engine(proxy.url, poolclass=NullPool)
    queue = RunQueue(engine, settings=settings)
    queue.enqueue("k", tenant_id="t")
    [claimed] = queue.claim("w", kinds=["k"])
    proxy.cut_after(b"agent_runs")
    with pytest.raises(OperationalError):
        queue.complete(claimed.lease, 1)
    assert proxy.fired.is_set()
    assert queue.get(claimed.run.id).status is RunStatus.DONE
    queue.complete(claimed.lease, 1)  # what a caller does who does not know


def test_backends_can_be_ended(url):
    engine = create_engine(url, connect_args={"application_name": "runqueue test"})
    with engine.connect() as connection:
        assert connection.execute(text("select 1")).scalar() == 1
        assert terminate_backends(url) == 1
        connection.invalidate()
    engine.dispose()


def test_eventually_gives_up():
    assert eventually(lambda: 3) == 3
    with pytest.raises(AssertionError, match=r"rain did not come true within 0.05 s"):
        eventually(lambda: 0, 0.05, what="rain")
