"""Signals at awkward moments and to more than one process: no run is left leased by a worker that could still write."""

from __future__ import annotations

import os
import signal

import pytest
from sqlalchemy import text
from support.effects import Effects
from support.fleet import Fleet
from support.tools import autocommit, eventually

from runqueue import NewRun, RunQueue

TERM, HUP = signal.SIGTERM, signal.SIGHUP


def test_runs_claimed_when_the_signal_comes_finish_or_are_released(fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    new = [
        NewRun(kind=kind, input="never", tenant_id="acme", max_attempts=1) for kind in ("quick", "gate", "sync_quick")
    ]
    quick, gate, sync = (run.id for run in plain.enqueue_many(new))
    process = fleet.start(surprise="drain after claim", drain_timeout=1)
    assert process.exit_code() == 0
    assert "ended cleanly" in process.log
    assert [(plain.get(x).status, plain.get(x).attempts) for x in (quick, sync)] == [("done", 1)] * 2
    assert (plain.get(gate).status, plain.get(gate).attempts) == ("pending", 0)
    assert fx.attempts(gate) == [1]


def test_claim_that_was_on_its_way_when_the_signal_came_is_not_forgotten(
    url: str, fleet: Fleet, plain: RunQueue, fx: Effects
) -> None:
    """The claim is sent, the signal is handled, and only then does the database take the run."""
    process = fleet.start(statement_timeout=10).ready()
    waiting = text(
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' "
        "and application_name = 'runqueue'"
    )
    with plain.engine.begin() as connection, autocommit(url) as looking:
        connection.execute(text("lock table runqueue.agent_run_pauses in access exclusive mode"))
        run = plain.enqueue("quick", tenant_id="acme")
        eventually(lambda: looking.execute(waiting).scalar_one(), 10, what="a claim that waits")
        process.send(TERM)
        eventually(lambda: "draining" in process.log, 5, what="the drain")
    assert process.exit_code() == 0
    assert (plain.get(run.id).status, fx.attempts(run.id)) == ("done", [1])


def test_signal_to_the_whole_group_leaves_no_lease_and_no_process(fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    """A handler's own process may be ended by it too: then the handler says what that means for its run."""
    process = fleet.start(drain_timeout=10).ready()
    waits, parent = plain.enqueue("gate", "go", tenant_id="acme"), plain.enqueue("parent", tenant_id="acme")
    for run in (waits, parent):
        fx.await_start(run.id)
    os.killpg(process.pid, TERM)
    eventually(lambda: "draining" in process.log, 5, what="the drain")
    eventually(lambda: plain.get(parent.id).status == "pending", 5, what="the end of the parent")
    assert plain.get(waits.id).status == "leased"
    fx.open("go")
    assert process.exit_code() == 0
    assert (plain.get(waits.id).status, plain.get(waits.id).attempts) == ("done", 1)
    assert [event.type for event in plain.events(parent.id)] == ["run.failed"]
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_hangup_ends_the_process_at_once_and_its_leases_expire(fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    """It is the system's to decide, so that `nohup` works."""
    process = fleet.start(lease=1, heartbeat=0.3).ready()
    run = plain.enqueue("gate", "go", tenant_id="acme")
    fx.await_start(run.id)
    process.send(HUP)
    assert process.exit_code(5) == -HUP
    assert plain.get(run.id).status == "leased"
    fx.open("go")
    fleet.start().ready()
    done = plain.wait(run.id, 15)
    assert (done.status, done.attempts) == ("done", 2)
