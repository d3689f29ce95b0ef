"""The work is done and its record is not: the acknowledgement is repeated until it is answered, never doubled."""

from __future__ import annotations

import dataclasses
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError
from support.effects import Effects
from support.fleet import Fleet
from support.here import running
from support.postgres import OwnServer, own_server
from support.proxy import Proxy
from support.tools import autocommit, eventually

from runqueue import RunQueue, Settings, Worker
from runqueue.schema import migrate
from runqueue.testing import audit
from runqueue.worker import SyncRunContext

COMPLETES = b"'done'"
"""Only the statement that completes runs has this."""


class Gated:
    """A handler that goes on when it is let, and says who it is."""

    def __init__(self, queue: RunQueue, name: str) -> None:
        self.started, self.go, self.returned = threading.Event(), threading.Event(), threading.Event()
        self.calls = 0

        @queue.handler("work")
        def work(run: SyncRunContext) -> str:
            self.calls += 1
            self.started.set()
            self.go.wait(30)
            self.returned.set()
            return f"{name}, attempt {run.attempt}"


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """A server that may crash."""
    with own_server() as server:
        engine = create_engine(server.url())
        migrate.upgrade(engine)
        with engine.begin() as connection:
            audit.install(connection)
        engine.dispose()
        yield server


@contextmanager
def _queue(url: str, settings: Settings) -> Iterator[RunQueue]:
    engine = create_engine(url, connect_args={"connect_timeout": 2, "application_name": "runqueue"})
    yield RunQueue(engine, settings=settings)
    engine.dispose()


def test_server_crash_before_the_acknowledgement_changes_nothing(server: OwnServer, settings: Settings) -> None:
    patient = dataclasses.replace(settings, lease=20, statement_timeout=2)
    with _queue(server.url(), patient) as queue:
        handler = Gated(queue, "first")
        with running(Worker(queue), drain=5) as worker:
            run = queue.enqueue("work", tenant_id="acme")
            assert handler.started.wait(10)
            server.crash()
            handler.go.set()
            eventually(lambda: worker.stats.database_errors, 10, what="a failed acknowledgement")
            server.start()
            eventually(lambda: worker.stats.completed, 15, what="the acknowledgement")
            queue.engine.dispose()  # the application's own pool, which knows nothing of the crash
            done = queue.get(run.id)
            assert (done.status, done.attempts, done.result) == ("done", 1, "first, attempt 1")
            assert handler.calls == 1
            # and the worker is as good as new
            again = queue.enqueue("work", tenant_id="acme")
            assert queue.wait(again.id, 10).status == "done"
    with autocommit(server.url()) as connection:
        audit.check(connection)


def test_acknowledgement_whose_answer_is_lost_is_a_success(proxy: Proxy, plain: RunQueue, settings: Settings) -> None:
    with _queue(proxy.url, settings) as queue:
        handler = Gated(queue, "first")
        with running(Worker(queue)) as worker:
            run = queue.enqueue("work", tenant_id="acme")
            assert handler.started.wait(10)
            proxy.cut_after(COMPLETES)
            handler.go.set()
            assert proxy.fired.wait(10)
            eventually(lambda: worker.stats.completed, 10, what="the repeated acknowledgement")
            assert worker.stats.lease_lost == 0
    done = plain.get(run.id)
    assert (done.status, done.attempts, handler.calls) == ("done", 1, 1)


def test_acknowledgement_after_the_run_was_taken_is_refused(proxy: Proxy, plain: RunQueue, settings: Settings) -> None:
    with _queue(proxy.url, dataclasses.replace(settings, statement_timeout=1)) as queue:
        first, second = Gated(queue, "first"), Gated(plain, "second")
        run = queue.enqueue("work", tenant_id="acme")
        with running(Worker(queue)) as slow:
            assert first.started.wait(10)
            proxy.refuse()
            proxy.cut()
            first.go.set()
            assert first.returned.wait(5)
            with running(Worker(plain), drain=5):
                assert second.started.wait(15)
                proxy.restore()
                eventually(lambda: slow.stats.lease_lost, 15, what="the refusal")
                assert plain.get(run.id).status == "leased"
                second.go.set()
                done = plain.wait(run.id, 10)
        assert slow.stats.completed == 0
    assert (done.attempts, done.result) == (2, "second, attempt 2")
    assert (first.calls, second.calls) == (1, 1)


def test_shutdown_waits_for_an_acknowledgement_that_is_being_repeated(
    fleet: Fleet, proxy: Proxy, plain: RunQueue, fx: Effects
) -> None:
    process = fleet.start(url=proxy.url, lease=10, statement_timeout=1).ready()
    run = plain.enqueue("sync_gate", "go", tenant_id="acme")
    fx.await_start(run.id)
    proxy.refuse()
    proxy.cut()
    fx.open("go")
    eventually(lambda: "failed a call" in process.log, 10, what="a failed acknowledgement")
    process.send(signal.SIGTERM)
    eventually(lambda: "draining" in process.log, 5, what="the drain")
    proxy.restore()
    assert process.exit_code() == 0
    done = plain.get(run.id)
    assert (done.status, done.attempts) == ("done", 1)


def test_nothing_is_claimed_while_acknowledgements_fail(plain: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.handler("work")(lambda run: "done")
    complete, failing = RunQueue.complete_encoded, threading.Event()
    failing.set()

    def complete_encoded(self: RunQueue, done: object) -> object:
        if failing.is_set():
            raise OperationalError("complete", {}, Exception("out of order"))
        return complete(self, done)  # type: ignore[arg-type]

    monkeypatch.setattr(RunQueue, "complete_encoded", complete_encoded)
    first = plain.enqueue("work", tenant_id="acme")
    with running(Worker(plain)) as worker:
        eventually(lambda: worker.stats.database_errors, 10, what="a failed acknowledgement")
        more = [plain.enqueue("work", tenant_id="acme") for _ in range(5)]
        eventually(lambda: worker.stats.database_errors >= 2, 10, what="more failures")
        assert worker.stats.claimed == 1
        failing.clear()
        for run in [first, *more]:
            assert plain.wait(run.id, 10).attempts == 1
