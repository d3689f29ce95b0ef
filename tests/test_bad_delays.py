"""A handler that asks for an impossible delay has failed; its worker goes on."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from sqlalchemy import Engine

from runqueue import Retry, RunQueue, RunStatus, Settings, Snooze, Worker


@pytest.mark.parametrize("delay", [-1, math.nan, math.inf, 1e12, "soon"])
@pytest.mark.parametrize("instruction", [Snooze, Retry])
def test_impossible_delay_fails_its_run_alone(
    engine: Engine, settings: Settings, delay: float, instruction: type[Snooze] | type[Retry]
) -> None:
    queue = RunQueue(engine, settings=settings)

    @queue.handler("asks")
    def asks(run) -> None:
        raise instruction(delay=delay)

    @queue.handler("works")
    def works(run) -> str:
        return "fine"

    bad = queue.enqueue("asks", tenant_id="acme", max_attempts=1, priority=1)
    good = queue.enqueue("works", tenant_id="acme")
    assert Worker(queue, concurrency=1).drain(timeout=20) == 2
    bad, good = queue.get(bad.id), queue.get(good.id)
    assert (bad.status, bad.error_code) == (RunStatus.DEAD, "InvalidRun")
    assert "delay" in str(bad.error_message)
    assert good.result == "fine"


@pytest.mark.parametrize("delay", [3600, 3600.0, timedelta(hours=1)])
def test_snooze_takes_seconds_or_a_timedelta(engine: Engine, settings: Settings, delay: float) -> None:
    queue = RunQueue(engine, settings=settings)

    @queue.handler("asks")
    def asks(run) -> None:
        raise Snooze(delay)

    run = queue.enqueue("asks", tenant_id="acme")
    assert Worker(queue).drain(timeout=20) == 1
    run = queue.get(run.id)
    assert (run.status, run.attempts) == (RunStatus.PENDING, 0)
    assert 3590 < (run.available_at - run.updated_at).total_seconds() <= 3600
