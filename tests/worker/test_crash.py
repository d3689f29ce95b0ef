"""A process that dies is charged for it: the run is tried as often as its attempts say, then it is dead."""

from __future__ import annotations

import pytest
from support.effects import Effects
from support.fleet import Fleet, Process, both_policies, slow

from runqueue import RunQueue


def _supervise(fleet: Fleet, plain: RunQueue, run_id: object, **options: object) -> Process:
    """Start a worker again each time it dies, until the run has ended."""
    process = fleet.start(**options)  # type: ignore[arg-type]
    while not plain.get(run_id).status.terminal:  # type: ignore[arg-type]
        try:
            process.popen.wait(0.05)
        except Exception:
            continue
        assert process.popen.returncode == -9, process.log
        process = fleet.start(**options)  # type: ignore[arg-type]
    return process


@both_policies
@pytest.mark.parametrize("attempts", [slow(1), 3])
def test_poison_kills_its_worker_exactly_max_attempts_times(
    attempts: int, any_fleet: Fleet, plain: RunQueue, fx: Effects
) -> None:
    poison = plain.enqueue("poison", tenant_id="acme", max_attempts=attempts)
    innocent = [plain.enqueue("quick", tenant_id="acme") for _ in range(5)]
    _supervise(any_fleet, plain, poison.id, concurrency=1, lease=1, heartbeat=0.3)
    dead = plain.get(poison.id)
    assert fx.attempts(poison.id) == list(range(1, attempts + 1))
    assert (dead.status, dead.error_code, dead.attempts) == ("dead", "lease_expired", attempts)
    assert dead.finished_at is not None
    for run in innocent:
        assert plain.wait(run.id, 10).status == "done"
        assert len(fx.attempts(run.id)) == 1


@pytest.mark.slow
def test_lost_run_waits_for_its_backoff(any_fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    poison = plain.enqueue("poison", tenant_id="acme", max_attempts=2)
    _supervise(any_fleet, plain, poison.id, retry_base=3, lease=1, heartbeat=0.3)
    assert len(fx.gaps(poison.id)) == 1
    assert fx.gaps(poison.id)[0] >= 3


@both_policies
def test_crash_between_claim_and_start_costs_an_attempt(any_fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    run = plain.enqueue("quick", tenant_id="acme", max_attempts=2)
    assert any_fleet.start(surprise="die after claim", lease=1, heartbeat=0.3).exit_code() == -9
    assert (plain.get(run.id).status, plain.get(run.id).attempts) == ("leased", 1)
    any_fleet.start().ready()
    done = plain.wait(run.id, 10)
    assert (done.status, done.attempts) == ("done", 2)
    assert fx.attempts(run.id) == [2]
