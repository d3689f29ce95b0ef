"""Sweeps of a fleet: whoever is cut off or killed in the middle of one, all lost runs come back, each of them once."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from support.effects import Effects
from support.fleet import Fleet
from support.here import running
from support.proxy import Proxy
from support.tools import eventually

from runqueue import Reaped, RunQueue, Settings, Worker

LOST = """
alter table runqueue.agent_runs disable trigger audit;
insert into runqueue.agent_runs (id, tenant_id, queue, kind, status, attempts, fencing_token, locked_by, locked_until,
                                 updated_at)
select gen_random_uuid(), 't', 'elsewhere', 'k', 'leased', 1, 1, 'gone', clock_timestamp() - interval '1 s',
       clock_timestamp() - interval '1 h'
from generate_series(1, {n});
alter table runqueue.agent_runs enable trigger audit;
"""
"""In a queue that nobody works on: what is swept stays as the sweep left it."""


def _lose(plain: RunQueue, n: int) -> None:
    with plain.engine.begin() as connection:
        connection.execute(text(LOST.format(n=n)))


def _states(plain: RunQueue) -> dict[str, int]:
    query = text("select status, count(*) from runqueue.agent_runs where queue = 'elsewhere' group by 1")
    with plain.engine.connect() as connection:
        return {row.status: row.count for row in connection.execute(query)}


def _each_once(plain: RunQueue, n: int) -> None:
    query = text("select count(*), count(distinct run_id) from runqueue.agent_run_events where type = 'run.lost'")
    with plain.engine.connect() as connection:
        assert tuple(connection.execute(query).one()) == (n, n)


@pytest.fixture
def far(proxy: Proxy, settings: Settings) -> Iterator[RunQueue]:
    """The worker's queue: behind the proxy, with small sweeps."""
    engine = create_engine(proxy.url, connect_args={"connect_timeout": 1, "application_name": "runqueue"})
    yield RunQueue(engine, settings=dataclasses.replace(settings, statement_timeout=1, reap_limit=50))
    engine.dispose()


def test_sweep_goes_on_after_the_database_was_away(
    far: RunQueue, plain: RunQueue, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    reap, calls, swept = RunQueue.reap, itertools.count(), list[Reaped]()

    def cut_after_the_first(self: RunQueue, limit: int | None = None) -> Reaped:
        if next(calls) == 1:
            proxy.refuse()
            proxy.cut()
        swept.append(reap(self, limit))
        return swept[-1]

    monkeypatch.setattr(RunQueue, "reap", cut_after_the_first)
    far.handler("k")(lambda run: None)
    _lose(plain, 300)
    with running(Worker(far)) as worker:
        eventually(lambda: worker.stats.database_errors >= 2, 10, what="sweeps that fail")
        assert _states(plain) == {"leased": 250, "pending": 50}
        proxy.restore()
        eventually(lambda: _states(plain) == {"pending": 300}, 15, what="the return of all")
        assert worker.stats.reaped == 300
    assert max(x.total for x in swept) == 50
    _each_once(plain, 300)


@pytest.mark.slow
def test_others_go_on_when_a_sweeping_process_is_killed(fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    others = [fleet.start(reap_interval=1, reap_limit=50) for _ in range(2)]
    victim = fleet.start(reap_interval=0.05, reap_limit=50, surprise="die after sweep")
    for process in (*others, victim):
        process.ready()
    _lose(plain, 1000)
    assert victim.exit_code() == -9
    eventually(lambda: _states(plain) == {"pending": 1000}, 10, what="the return of all")
    _each_once(plain, 1000)
    assert not any(process.ended for process in others)


def _memory(pid: int, what: str) -> float:
    """VmRSS, what a process has now, or VmHWM, the most that it ever had; in MB."""
    found = re.search(rf"^{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


@pytest.mark.slow
def test_sweep_of_a_hundred_thousand_needs_little_memory(fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    process = fleet.start(statement_timeout=10).ready()
    assert plain.wait(plain.enqueue("quick", tenant_id="acme").id, 10).status == "done"
    before = _memory(process.pid, "VmRSS")
    _lose(plain, 100_000)
    eventually(lambda: _states(plain) == {"pending": 100_000}, 100, what="the return of all")
    assert _memory(process.pid, "VmHWM") - before < 50
    _each_once(plain, 100_000)
