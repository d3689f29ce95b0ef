"""Wake-ups are hints: whatever becomes of the listener, runs are found by polling, and soon the listener is back."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import text
from support.effects import Effects
from support.here import running
from support.proxy import Proxy
from support.tools import autocommit, eventually

from runqueue import RunQueue, Settings, Worker
from runqueue.worker.engines import Engines

PATIENT = 60.0
"""A poll so rare that a run that starts soon was announced."""


def _queue(plain: RunQueue, fx: Effects, **settings: Any) -> RunQueue:
    fast = {"listen_probe": 0.3, "statement_timeout": 1, "connect_timeout": 1, "poll_interval": PATIENT}
    queue = RunQueue(plain.engine, settings=Settings(**{**vars(plain.settings), **fast, **settings}))
    queue.handler("work")(lambda run: fx.note(run))
    return queue


def _is_woken(queue: RunQueue, worker: Worker) -> None:
    """Wait for the listener, then for a run that only a wake-up can start in time."""
    eventually(lambda: worker.stats.listener_up, 15, what="the listener")
    time.sleep(0.3)  # its first look around
    for _ in range(3):
        assert queue.wait(queue.enqueue("work", tenant_id="acme").id, 10).status == "done"


def _listener(url: str, do: str) -> int:
    statement = text(
        f"select count({do}(pid)) from pg_stat_activity "
        "where datname = current_database() and query ilike '%listen%' and pid <> pg_backend_pid()"
    )
    with autocommit(url) as connection:
        return int(connection.execute(statement).scalar_one())


def test_listener_that_was_ended_comes_back(url: str, plain: RunQueue, fx: Effects) -> None:
    queue = _queue(plain, fx)
    with running(Worker(queue)) as worker:
        _is_woken(queue, worker)
        assert _listener(url, "pg_terminate_backend") == 1
        eventually(lambda: not worker.stats.listener_up, 5, what="the notice")
        _is_woken(queue, worker)


def test_listener_in_a_black_hole_is_noticed_and_comes_back(proxy: Proxy, plain: RunQueue, fx: Effects) -> None:
    queue = _queue(plain, fx, listen_url=proxy.url, poll_interval=0.5)
    with running(Worker(queue)) as worker:
        eventually(lambda: worker.stats.listener_up, 10, what="the listener")
        proxy.blackhole()
        eventually(lambda: not worker.stats.listener_up, 10, what="the notice")
        assert queue.wait(queue.enqueue("work", tenant_id="acme").id, 10).status == "done"
        proxy.restore()
        eventually(lambda: worker.stats.listener_up, 15, what="the listener")


def test_listener_that_is_down_at_the_start_costs_nothing_but_time(
    proxy: Proxy, plain: RunQueue, fx: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen, tries = Engines.listen, list[float]()

    def counted(self: Engines) -> Any:
        tries.append(time.monotonic())
        return listen(self)

    monkeypatch.setattr(Engines, "listen", counted)
    queue = _queue(plain, fx, listen_url=proxy.url, poll_interval=0.5)
    proxy.refuse()
    with running(Worker(queue)) as worker:
        for _ in range(3):
            assert queue.wait(queue.enqueue("work", tenant_id="acme").id, 10).status == "done"
        eventually(lambda: len(tries) >= 4, 15, what="the fourth try")
        assert not worker.stats.listener_up
        assert tries[3] - tries[0] > 0.5  # no busy spin: pauses of 0.1, 0.2, 0.4 … s, at least by half
        proxy.restore()
        eventually(lambda: worker.stats.listener_up, 15, what="the listener")


def test_what_was_announced_to_nobody_is_looked_for_when_the_listener_is_back(
    proxy: Proxy, plain: RunQueue, fx: Effects
) -> None:
    queue = _queue(plain, fx, listen_url=proxy.url)
    with running(Worker(queue)) as worker:
        _is_woken(queue, worker)
        proxy.refuse()
        proxy.cut()
        eventually(lambda: not worker.stats.listener_up, 10, what="the notice")
        run = queue.enqueue("work", tenant_id="acme")
        proxy.restore()
        assert queue.wait(run.id, 20).status == "done"


def test_session_that_stopped_listening_is_noticed(plain: RunQueue, fx: Effects) -> None:
    """As behind a transaction pooler, where the connection is fine and hears nothing."""
    queue = _queue(plain, fx)
    with running(Worker(queue)) as worker:
        _is_woken(queue, worker)
        assert worker._listener is not None
        connection = worker._listener._connection
        assert connection is not None
        connection.execute("unlisten *")
        eventually(lambda: worker._listener._connection not in (None, connection), 10, what="another session")  # type: ignore[union-attr]
        _is_woken(queue, worker)


def test_wake_up_starts_a_run_long_before_the_next_poll(plain: RunQueue, fx: Effects) -> None:
    queue = _queue(plain, fx)
    with running(Worker(queue)) as worker:
        _is_woken(queue, worker)


def test_listening_may_be_turned_off(url: str, plain: RunQueue, fx: Effects) -> None:
    queue = _queue(plain, fx, listen=False, poll_interval=0.1)
    with running(Worker(queue)) as worker:
        assert queue.wait(queue.enqueue("work", tenant_id="acme").id, 10).status == "done"
        assert not worker.stats.listener_up
        assert "runqueue-listen" not in [thread.name for thread in threading.enumerate()]
        assert _listener(url, "") == 0


def test_announcing_may_be_turned_off(plain: RunQueue, fx: Effects) -> None:
    queue = _queue(plain, fx, notify=False, poll_interval=0.1)
    with running(Worker(queue)):
        assert queue.wait(queue.enqueue("work", tenant_id="acme").id, 10).status == "done"


def test_run_starts_only_after_its_commit(plain: RunQueue, fx: Effects) -> None:
    queue = _queue(plain, fx)
    with running(Worker(queue)) as worker:
        _is_woken(queue, worker)
        with queue.engine.begin() as connection:
            run = queue.enqueue("work", tenant_id="acme", connection=connection)
            claimed = worker.stats.claimed
            other = queue.enqueue("work", tenant_id="acme")  # makes the worker look
            assert queue.wait(other.id, 10).status == "done"
            assert worker.stats.claimed == claimed + 1
            committed = connection.execute(text("select clock_timestamp()")).scalar_one()
        assert queue.wait(run.id, 10).status == "done"
        with queue.engine.connect() as connection:
            started = connection.execute(text("select at from fx where run_id = :id"), {"id": run.id}).scalar_one()
        assert started > committed
