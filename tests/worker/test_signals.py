"""SIGTERM and SIGINT: the first drains, the second ends at once; whatever happens, no run is lost or charged for it."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest
from support.effects import Effects
from support.fleet import Fleet, Process, slow
from support.proxy import Proxy
from support.tools import eventually

from runqueue import RunContext, RunQueue, Worker

TERM, INT = signal.SIGTERM, signal.SIGINT


def _nothing_left(process: Process) -> None:
    """No process of the worker's own group is alive."""
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


@pytest.mark.parametrize("number", [TERM, slow(INT)])
def test_idle_worker_ends_at_once(number: signal.Signals, fleet: Fleet) -> None:
    process = fleet.start().ready()
    process.send(number)
    assert process.exit_code(3) == 0
    assert "ended cleanly" in process.log
    _nothing_left(process)


def test_short_runs_finish_and_nothing_more_is_claimed(fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    process = fleet.start(concurrency=2, drain_timeout=10).ready()
    runs = [plain.enqueue(kind, "go", tenant_id="acme") for kind in ("gate", "sync_gate")]
    for run in runs:
        fx.await_start(run.id)
    process.send(TERM)
    eventually(lambda: "draining" in process.log, 5, what="the drain")
    late = plain.enqueue("quick", tenant_id="acme")
    fx.open("go")
    assert process.exit_code() == 0
    assert [(plain.get(run.id).status, plain.get(run.id).attempts) for run in runs] == [("done", 1)] * 2
    assert plain.get(late.id).status == "pending"
    assert fx.attempts(late.id) == []


@pytest.mark.parametrize("kind", ["gate", slow("sync_gate"), slow("deaf"), slow("block")])
def test_long_runs_are_released_at_the_drain_deadline(kind: str, fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    process = fleet.start(drain_timeout=0.5).ready()
    run = plain.enqueue(kind, 60 if kind == "block" else "never", tenant_id="acme", max_attempts=1)
    fx.await_start(run.id)
    process.send(TERM)
    assert process.exit_code(8) == 0
    released = plain.get(run.id)
    assert (released.status, released.attempts) == ("pending", 0)
    assert [event.type for event in plain.events(run.id)] == ["run.released"]
    assert "Traceback" not in process.log
    _nothing_left(process)


@pytest.mark.parametrize("number", [TERM, slow(INT)])
def test_second_signal_ends_the_process_at_once(
    number: signal.Signals, fleet: Fleet, plain: RunQueue, fx: Effects
) -> None:
    process = fleet.start(drain_timeout=30).ready()
    run = plain.enqueue("gate", "go", tenant_id="acme")
    fx.await_start(run.id)
    process.send(number)
    eventually(lambda: "draining" in process.log, 5, what="the drain")
    before = time.monotonic()
    process.send(number)
    assert process.exit_code(5) == 128 + number
    assert time.monotonic() - before < 1
    _nothing_left(process)
    assert plain.get(run.id).status == "leased"
    if number is TERM:
        fx.open("go")
        fleet.start().ready()
        done = plain.wait(run.id, 10)
        assert (done.status, done.attempts) == ("done", 2)


def test_signal_during_start_up_is_not_forgotten(fleet: Fleet, plain: RunQueue, fx: Effects, proxy: Proxy) -> None:
    run = plain.enqueue("quick", tenant_id="acme")
    proxy.blackhole()
    process = fleet.start(url=proxy.url, connect_timeout=20)
    eventually(lambda: proxy.connections, 20, what="a connection")
    process.send(TERM)
    eventually(lambda: "draining" in process.log, 5, what="the drain")
    proxy.restore()
    assert process.exit_code() == 0
    assert plain.get(run.id).attempts == 0
    assert fx.attempts(run.id) == []


def test_second_signal_during_start_up_ends_the_process(fleet: Fleet, proxy: Proxy) -> None:
    proxy.blackhole()
    process = fleet.start(url=proxy.url, connect_timeout=20)
    eventually(lambda: proxy.connections, 20, what="a connection")
    process.send(TERM)
    eventually(lambda: "draining" in process.log, 5, what="the drain")
    process.send(TERM)
    assert process.exit_code(2) == 143


@pytest.mark.parametrize("fault", ["refuse", slow("blackhole")])
@pytest.mark.parametrize("busy", [False, slow(True)], ids=["idle", "busy"])
def test_worker_ends_while_the_database_is_away(
    fault: str, busy: bool, fleet: Fleet, plain: RunQueue, fx: Effects, proxy: Proxy
) -> None:
    process = fleet.start(url=proxy.url, drain_timeout=0.5, statement_timeout=1, connect_timeout=1).ready()
    run = plain.enqueue("gate", "never", tenant_id="acme") if busy else None
    if run is not None:
        fx.await_start(run.id)
    if fault == "refuse":
        proxy.refuse()
        proxy.cut()
    else:
        proxy.blackhole()
    process.send(TERM)
    assert process.exit_code(10) == 0
    _nothing_left(process)
    if run is not None:
        assert plain.get(run.id).status == "leased"


@pytest.mark.slow
def test_rolling_restarts_charge_no_attempt(any_fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    run = plain.enqueue("gate", "go", tenant_id="acme", max_attempts=1)
    for restart in range(1, 6):
        process = any_fleet.start(drain_timeout=0.1).ready()
        fx.await_start(run.id, restart)
        process.send(TERM)
        assert process.exit_code() == 0
        assert (plain.get(run.id).status, plain.get(run.id).attempts) == ("pending", 0)
    fx.open("go")
    any_fleet.start().ready()
    done = plain.wait(run.id, 10)
    assert (done.status, done.attempts, done.fencing_token) == ("done", 1, 6)
    assert fx.attempts(run.id) == [1] * 6
    assert [event.type for event in plain.events(run.id)] == ["run.released"] * 5 + ["passed"]


async def test_embedded_worker_leaves_signals_alone(plain: RunQueue) -> None:
    @plain.handler("work")
    async def work(run: RunContext) -> None:
        await asyncio.sleep(0)

    before = [signal.getsignal(number) for number in (TERM, INT, signal.SIGHUP)]
    async with Worker(plain):
        assert [signal.getsignal(number) for number in (TERM, INT, signal.SIGHUP)] == before
    assert [signal.getsignal(number) for number in (TERM, INT, signal.SIGHUP)] == before
