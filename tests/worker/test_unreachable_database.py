"""A worker that cannot renew its leases stops its handlers before the database could give the runs away."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time

import pytest
from sqlalchemy import Engine, create_engine, text
from support.effects import Effects
from support.here import running
from support.proxy import Proxy
from support.tools import eventually

from runqueue import RunContext, RunQueue, Settings, Worker
from runqueue.worker.engines import Engines


@pytest.fixture
def far(proxy: Proxy, settings: Settings) -> RunQueue:
    """The worker's queue: behind the proxy."""
    engine = create_engine(proxy.url, connect_args={"connect_timeout": 1, "application_name": "runqueue"})
    return RunQueue(engine, settings=dataclasses.replace(settings, statement_timeout=1))


@pytest.fixture
def far_heartbeat(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the heartbeats of a worker go through the proxy."""

    def heartbeat(self: Engines) -> RunQueue:
        engine = create_engine(proxy.url, connect_args={"connect_timeout": 1})
        self._own.append(engine)
        return RunQueue.over(self._core, engine)

    monkeypatch.setattr(Engines, "heartbeat", property(heartbeat))


class Stubborn:
    """A handler that notes when it is cancelled and returns a result all the same."""

    def __init__(self) -> None:
        self.started = threading.Semaphore(0)
        self.cancelled: list[float] = []

    async def __call__(self, run: RunContext) -> str:
        self.started.release()
        try:
            await asyncio.sleep(60 if run.attempt == 1 else 0)
        except asyncio.CancelledError:
            self.cancelled.append(time.monotonic())
        return f"attempt {run.attempt}"

    def register(self, queue: RunQueue) -> None:
        @queue.handler("stubborn")
        async def stubborn(run: RunContext) -> str:
            return await self(run)


def _seconds_left(engine: Engine) -> float:
    """Until the first lease ends, by the database's clock."""
    statement = "select extract(epoch from min(locked_until) - clock_timestamp())::float8 from runqueue.agent_runs"
    with engine.connect() as connection:
        return float(connection.execute(text(statement)).scalar_one())


def _stopped_in_time(worker: Worker, plain: RunQueue, proxy: Proxy, handler: Stubborn) -> None:
    runs = [plain.enqueue("stubborn", tenant_id="acme") for _ in range(5)]
    with running(worker):
        for _ in runs:
            assert handler.started.acquire(timeout=10)
        proxy.blackhole()
        expiry = time.monotonic() + _seconds_left(plain.engine)
        tokens = [plain.get(run.id).fencing_token for run in runs]
        eventually(lambda: len(handler.cancelled) == 5, 5, what="five cancellations")
        assert max(handler.cancelled) <= expiry
        assert tokens == [1] * 5

        proxy.restore()
        for run in runs:
            done = plain.wait(run.id, 15)
            assert (done.status, done.attempts, done.result) == ("done", 2, "attempt 2")
            assert "run.failed" not in [event.type for event in plain.events(run.id)]
        assert worker.stats.lease_lost == 5


def test_handlers_stop_before_their_leases_end_when_the_database_is_gone(
    far: RunQueue, plain: RunQueue, proxy: Proxy
) -> None:
    handler = Stubborn()
    handler.register(far)
    _stopped_in_time(Worker(far), plain, proxy, handler)
    far.engine.dispose()


@pytest.mark.slow
def test_handlers_stop_before_their_leases_end_when_only_heartbeats_are_lost(
    plain: RunQueue, proxy: Proxy, far_heartbeat: None
) -> None:
    handler = Stubborn()
    handler.register(plain)
    _stopped_in_time(Worker(plain), plain, proxy, handler)


def _five_go_on(worker: Worker, plain: RunQueue, fail: object, fx: Effects) -> None:
    runs = [plain.enqueue("gated", tenant_id="acme") for _ in range(5)]
    with running(worker):
        for run in runs:
            fx.await_start(run.id)
        fail()  # type: ignore[operator]
        eventually(lambda: worker.stats.database_errors, 5, what="a failed heartbeat")
        time.sleep(2.5)  # longer than a lease: without another heartbeat all are lost
        fx.open("go")
        for run in runs:
            done = plain.wait(run.id, 10)
            assert (done.status, done.attempts) == ("done", 1)
            assert fx.attempts(run.id) == [1]
        assert worker.stats.lease_lost == 0


def _gated(queue: RunQueue, fx: Effects) -> None:
    @queue.handler("gated")
    async def gated(run: RunContext) -> None:
        await asyncio.to_thread(fx.note, run)
        while not await asyncio.to_thread(fx.is_open, "go"):  # noqa: ASYNC110 - the gate is in the database
            await asyncio.sleep(0.1)


def test_one_failed_heartbeat_loses_nothing(plain: RunQueue, proxy: Proxy, far_heartbeat: None, fx: Effects) -> None:
    _gated(plain, fx)

    def cut() -> None:
        proxy.cut_before(b"locked_until")

    _five_go_on(Worker(plain), plain, cut, fx)


def test_heartbeat_survives_an_error_that_nobody_foresaw(
    plain: RunQueue, fx: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    _gated(plain, fx)
    heartbeat, failing = RunQueue.heartbeat, threading.Event()

    def once(self: RunQueue, *args: object, **kwargs: object) -> object:
        if failing.is_set():
            failing.clear()
            raise OSError("bad file descriptor")
        return heartbeat(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(RunQueue, "heartbeat", once)
    _five_go_on(Worker(plain), plain, failing.set, fx)


@pytest.mark.audit(skip=["INV7"])  # the thread that hangs ends with the proxy
def test_drain_ends_though_connecting_hangs(proxy: Proxy, settings: Settings, caplog: pytest.LogCaptureFixture) -> None:
    engine = create_engine(proxy.url)  # no connect_timeout: the driver would wait for minutes
    short = dataclasses.replace(settings, statement_timeout=0.5, abandon_after=0.5, listen_probe=0.3)
    queue = RunQueue(engine, settings=short)
    queue.handler("k")(lambda run: None)
    worker = Worker(queue)
    with running(worker):
        eventually(lambda: worker.stats.listener_up, 10, what="a listener")
        proxy.blackhole()
        eventually(lambda: not worker.stats.listener_up, 10, what="a listener that noticed")
    assert "left behind" in caplog.text
    proxy.refuse()
    engine.dispose()
