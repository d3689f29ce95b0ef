"""Times are the database's, whatever zone a session is in and however old its transaction is."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from conformance.driver import claim_one
from sqlalchemy import create_engine, text

from runqueue import RunQueue

WHEN = datetime(2031, 3, 30, 1, 30, tzinfo=UTC)


@pytest.fixture(params=["Pacific/Kiritimati", "America/St_Johns", "Europe/Berlin"])
def abroad(request, engine, policy, settings):
    """A queue whose sessions are in another time zone."""
    made = create_engine(engine.url, connect_args={"options": f"-cTimeZone={request.param}"})
    yield RunQueue(made, claim=policy, settings=settings)
    made.dispose()


def test_a_time_is_the_same_moment_in_every_zone(queue, abroad):
    given = WHEN.astimezone(timezone(timedelta(hours=-9, minutes=-30)))
    run = abroad.enqueue("k", tenant_id="t", available_at=given)
    assert run.available_at == queue.get(run.id).available_at == WHEN


def test_a_day_is_86400_seconds_across_a_change_of_clocks(abroad, facts):
    run = abroad.enqueue("k", tenant_id="t", delay=timedelta(days=200))
    [[wait]] = facts.sql("select extract(epoch from available_at - created_at) from runqueue.agent_runs")
    assert float(wait) == pytest.approx(200 * 86400, abs=5)
    assert abroad.explain(run.id).rule == "scheduled"


def test_leases_mean_the_same_to_sessions_in_different_zones(queue, abroad):
    queue.enqueue("k", tenant_id="t")
    claimed = claim_one(abroad)
    assert queue.reap().total == 0
    assert queue.claim("w") == []
    [answer] = queue.heartbeat([claimed.lease])
    assert 55 < answer.time_left <= 60
    assert answer.lease.locked_until - claimed.lease.locked_until < timedelta(seconds=30)


def test_an_old_transaction_writes_times_of_the_call(engine, queue):
    """`now()` would be the transaction's start."""
    run = queue.enqueue("k", tenant_id="t")
    with engine.begin() as connection:
        [[start]] = connection.execute(text("select now()")).all()
        connection.execute(text("select pg_sleep(0.2)"))
        cancelled = queue.cancel(run.id, connection=connection)
        made = queue.enqueue("k", tenant_id="t", connection=connection)
    for when in (cancelled.finished_at, cancelled.updated_at, made.created_at, made.available_at):
        assert when - start >= timedelta(seconds=0.2)
