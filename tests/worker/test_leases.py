"""Leases are renewed in time, and only by settings that leave room for a failure."""

from __future__ import annotations

import asyncio
import math
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from support.effects import Effects
from support.fleet import Fleet, both_policies
from support.here import running

from runqueue import InvalidRun, RunContext, RunQueue, Settings, Worker

GAPS = """
select coalesce(max(extract(epoch from at - before)), 0)::float8 from (
    select at, lag(at) over (partition by run_id order by n) before, old_status, new_status
    from runqueue_audit.audit) changes
where old_status = 'leased' and new_status = 'leased'
"""


@pytest.mark.parametrize(
    ("lease", "heartbeat", "leases"),
    [(2, 0.5, 1.5), pytest.param(1, 0.1, 5, marks=pytest.mark.slow), pytest.param(3, 1.2, 3, marks=pytest.mark.slow)],
)
def test_leases_are_renewed_within_half_their_length(
    lease: float, heartbeat: float, leases: int, plain: RunQueue, fx: Effects
) -> None:
    settings = Settings(**{**vars(plain.settings), "lease": lease, "heartbeat": heartbeat})
    queue = RunQueue(plain.engine, settings=settings)
    idle = RunQueue(plain.engine, settings=settings)

    @queue.handler("long")
    async def long(run: RunContext) -> None:
        await asyncio.to_thread(fx.note, run)
        await asyncio.sleep(lease * leases)

    idle.handler("long")(lambda run: fx.note(run, worker="idle"))
    with running(Worker(queue)):
        runs = [queue.enqueue("long", tenant_id="acme") for _ in range(3)]
        for run in runs:
            fx.await_start(run.id)
        with running(Worker(idle)):
            for run in runs:
                assert queue.wait(run.id, 30).attempts == 1
                assert fx.all(run.id) == [(1, "here")]
    with queue.engine.connect() as connection:
        assert 0 < connection.execute(text(GAPS)).scalar_one() <= lease / 2


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"lease": 10, "heartbeat": 5}, ["10", "5"]),
        ({"lease": 10, "heartbeat": 60}, ["10", "60"]),
        ({"lease": 20}, ["20", "15"]),
        ({"lease": 0}, ["0"]),
        ({"lease": -1}, ["-1"]),
        ({"lease": math.nan}, ["nan"]),
        ({"heartbeat": 0}, ["0"]),
        ({"heartbeat": math.nan}, ["nan"]),
    ],
    ids=str,
)
def test_settings_that_would_lose_leases_are_refused(values: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(InvalidRun) as refused:
        Settings(**values)
    assert all(word in str(refused.value) for word in said)


def test_handler_may_run_longer_than_a_lease(plain: RunQueue) -> None:
    plain.handler("long", timeout=timedelta(hours=1))(lambda run: run.time_left)
    with running(Worker(plain)):
        assert plain.wait(plain.enqueue("long", tenant_id="acme").id, 10).result > 3500


@both_policies
def test_kind_without_a_handler_here_is_left_to_others(any_fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    old = any_fleet.start(["quick"], poll_interval=0.1).ready()
    unknown = [plain.enqueue("sync_quick", tenant_id="acme") for _ in range(20)]
    for known in [plain.enqueue("quick", tenant_id="acme") for _ in range(5)]:
        plain.wait(known.id, 10)
    left = [plain.get(run.id) for run in unknown]
    assert {(run.status, run.attempts, run.fencing_token) for run in left} == {("pending", 0, 0)}
    any_fleet.start(["quick", "sync_quick"]).ready()
    for run in unknown:
        done = plain.wait(run.id, 15)
        assert (done.status, done.attempts) == ("done", 1)
        assert old.name not in [worker for _, worker in fx.all(run.id)]
