"""A worker inside an application: its loop, its engines, its lifespan."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.ext.asyncio import AsyncEngine
from support.effects import Effects
from support.here import running
from support.postgres import own_server
from support.tools import autocommit, eventually

from runqueue import AsyncRunQueue, InvalidRun, RunContext, RunQueue, SchemaOutdated, Settings, Worker
from runqueue.errors import RunqueueError, Timeout
from runqueue.schema import migrate
from runqueue.worker.control import Control


def _handlers(queue: RunQueue | AsyncRunQueue) -> None:
    @queue.handler("async")
    async def async_(run: RunContext) -> str:
        async with run.transaction() as tx:
            await tx.connection.execute(text("select 1"))
            await tx.emit("step")
            await tx.save_checkpoint({"done": 1})
        return threading.current_thread().name

    @queue.handler("sync")
    def sync(run: Any) -> str:
        with run.transaction() as tx:
            tx.connection.execute(text("select 1"))
            tx.emit("step")
            tx.save_checkpoint({"done": 1})
        return threading.current_thread().name


def _expect(run: Any, kind: str) -> None:
    assert (run.status, run.attempts) == ("done", 1)
    assert run.result.startswith("runqueue-run-") == (kind == "sync")


def test_both_kinds_of_handlers_on_a_sync_queue(queue: RunQueue) -> None:
    _handlers(queue)
    with running(Worker(queue)):
        for kind in ("async", "sync"):
            run = queue.enqueue(kind, tenant_id="acme")
            _expect(queue.wait(run.id, 10), kind)
            assert [x.type for x in queue.events(run.id)] == ["step"]


async def test_both_kinds_of_handlers_on_an_async_queue(aqueue: AsyncRunQueue) -> None:
    _handlers(aqueue)
    async with Worker(aqueue):
        for kind in ("async", "sync"):
            run = await aqueue.enqueue(kind, tenant_id="acme")
            _expect(await aqueue.wait(run.id, 10), kind)
            assert [x.type for x in await aqueue.events(run.id)] == ["step"]


async def test_engines_of_the_application_are_used(
    engine: Engine, async_engine: AsyncEngine, settings: Settings
) -> None:
    used: set[str] = set()
    event.listen(engine, "checkout", lambda *_: used.add("sync"))
    event.listen(async_engine.sync_engine, "checkout", lambda *_: used.add("async"))
    queue = RunQueue(engine, settings=settings)
    _handlers(queue)
    async with Worker(queue, async_engine=async_engine):
        for kind in ("async", "sync"):
            run = await asyncio.to_thread(queue.enqueue, kind, tenant_id="acme")
            await asyncio.to_thread(queue.wait, run.id, 10)
    assert used == {"sync", "async"}


async def test_coroutines_run_on_the_loop_of_the_application(plain: RunQueue) -> None:
    loops: list[Any] = []

    @plain.handler("where")
    async def where(run: RunContext) -> None:
        loops.append(asyncio.get_running_loop())

    async with Worker(plain):
        run = await asyncio.to_thread(plain.enqueue, "where", tenant_id="acme")
        await asyncio.to_thread(plain.wait, run.id, 10)
    assert loops == [asyncio.get_running_loop()]


def test_restarts_of_the_application_release_what_still_runs(plain: RunQueue, fx: Effects) -> None:
    settings = Settings(**{**vars(plain.settings), "drain_timeout": 0.1})
    queue = RunQueue(plain.engine, settings=settings)

    @queue.handler("long")
    async def long(run: RunContext) -> None:
        await asyncio.to_thread(fx.note, run)
        await asyncio.sleep(60)

    async def application(restart: int) -> None:
        async with Worker(queue):
            await asyncio.to_thread(fx.await_start, run.id, restart)

    run = queue.enqueue("long", tenant_id="acme", max_attempts=1)
    for restart in range(1, 6):
        asyncio.run(application(restart))
        released = queue.get(run.id)
        assert (released.status, released.attempts, released.fencing_token) == ("pending", 0, restart)
    assert [x.type for x in queue.events(run.id)] == ["run.released"] * 5


async def test_application_that_fails_leaves_no_lease(plain: RunQueue, fx: Effects) -> None:
    plain.handler("work")(lambda run: fx.note(run))
    run = await asyncio.to_thread(plain.enqueue, "work", tenant_id="acme")

    async def application() -> None:
        async with Worker(plain):
            await asyncio.to_thread(fx.await_start, run.id)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await application()
    assert plain.get(run.id).status == "done"


async def test_worker_that_broke_says_so(plain: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.handler("work")(lambda run: None)

    def broken(self: Control) -> bool:
        raise ZeroDivisionError("a bug in the library")

    monkeypatch.setattr(Control, "_claim", broken)
    with pytest.raises(ZeroDivisionError):
        async with Worker(plain) as worker:
            await worker.serve()


async def test_worker_may_start_again_but_not_twice(plain: RunQueue) -> None:
    plain.handler("work")(lambda run: None)
    worker = Worker(plain)
    for _ in range(2):
        async with worker:
            name = worker.name
            with pytest.raises(RunqueueError, match="running already"):
                await worker.__aenter__()
            run = await asyncio.to_thread(plain.enqueue, "work", tenant_id="acme")
            await asyncio.to_thread(plain.wait, run.id, 10)
            assert worker.name == name


def test_worker_refuses_what_cannot_work(plain: RunQueue, blank_url: str) -> None:
    with pytest.raises(InvalidRun, match="no handler"):
        Worker(plain).drain()
    for queues in ("default", []):
        with pytest.raises(InvalidRun, match="queues"):
            Worker(plain, queues=queues)
    with pytest.raises(InvalidRun, match="a list of names, not the string 'default'"):
        Worker(plain, queues="default")
    for concurrency in (0, -1, 1.5):
        with pytest.raises(InvalidRun, match="concurrency"):
            Worker(plain, concurrency=concurrency)  # type: ignore[arg-type]
    blank = RunQueue(blank_url)
    blank.handler("work")(lambda run: None)
    with pytest.raises(SchemaOutdated):
        Worker(blank).drain()
    blank.engine.dispose()


def test_run_belongs_on_the_main_thread(plain: RunQueue) -> None:
    plain.handler("work")(lambda run: None)
    raised: list[BaseException] = []

    def elsewhere() -> None:
        try:
            Worker(plain).run()
        except RunqueueError as error:
            raised.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join(10)
    assert "main thread" in str(raised[0])


def test_drain_runs_what_is_due_and_what_that_enqueues(queue: RunQueue) -> None:
    @queue.handler("parent")
    def parent(run: Any) -> None:
        with run.transaction() as tx:
            tx.enqueue("child")

    queue.handler("child")(lambda run: None)
    later = queue.enqueue("child", tenant_id="acme", delay=3600)
    for _ in range(3):
        queue.enqueue("parent", tenant_id="acme")
    assert Worker(queue).drain() == 6
    assert queue.get(later.id).status == "pending"
    assert Worker(queue).drain() == 0


def test_drain_that_takes_too_long_says_so(plain: RunQueue) -> None:
    @plain.handler("long")
    async def long(run: RunContext) -> None:
        await asyncio.sleep(60)

    run = plain.enqueue("long", tenant_id="acme")
    with pytest.raises(Timeout):
        Worker(plain).drain(0.5)
    assert plain.get(run.id).status == "pending"


def test_worker_serves_its_queues_only(plain: RunQueue) -> None:
    plain.handler("work")(lambda run: None)
    mine = plain.enqueue("work", tenant_id="acme", queue="mine")
    other = plain.enqueue("work", tenant_id="acme", queue="other")
    assert Worker(plain, queues=["mine"]).drain() == 1
    assert [plain.get(run.id).status for run in (mine, other)] == ["done", "pending"]


@pytest.mark.slow
def test_worker_works_on_after_restarts_of_the_server(settings: Settings) -> None:
    with own_server() as server:
        engine = create_engine(server.url(), connect_args={"application_name": "runqueue"})
        migrate.upgrade(engine)
        queue = RunQueue(engine, settings=settings)
        _handlers(queue)
        with running(Worker(queue)) as worker:
            for restart in (server.restart, lambda: (server.kill(), server.start())):
                restart()
                engine.dispose()
                runs = [queue.enqueue(kind, tenant_id="acme") for kind in ("async", "sync")]
                assert {queue.wait(run.id, 20).status for run in runs} == {"done"}
                eventually(lambda: worker.stats.listener_up, 20, what="the listener")
        engine.dispose()


@pytest.fixture
def frozen(url: str) -> Iterator[Any]:
    """`frozen()` stops the sessions that are idle now: their sockets live, and nothing ever answers."""
    stopped: list[int] = []

    def freeze() -> int:
        statement = text(
            "select pid from pg_stat_activity where datname = current_database() and application_name = 'to freeze' "
            "and state = 'idle'"
        )
        with autocommit(url) as connection:
            found = connection.execute(statement).scalars().all()
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
            stopped.append(pid)
        return len(found)

    yield freeze
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("pre_ping", [False, True], ids=["", "pre_ping"])
def test_sessions_that_never_answer_are_left_for_new_ones(
    pre_ping: bool, url: str, plain: RunQueue, frozen: Any
) -> None:
    """With every call of the library, a pool's own question after the health of a connection included."""
    engine = create_engine(url, connect_args={"application_name": "to freeze"}, pool_pre_ping=pre_ping)
    settings = Settings(**{**vars(plain.settings), "statement_timeout": 0.5, "listen_probe": 0.3})
    queue = RunQueue(engine, settings=settings)
    queue.handler("work")(lambda run: "done")
    with running(Worker(queue)) as worker:
        assert plain.wait(queue.enqueue("work", tenant_id="acme").id, 10).status == "done"
        eventually(lambda: worker.stats.listener_up, 10, what="the listener")
        assert frozen() >= 2
        run = plain.enqueue("work", tenant_id="acme")
        assert plain.wait(run.id, 15).status == "done"
    engine.dispose()


@pytest.mark.slow
def test_idle_worker_asks_little(url: str) -> None:
    engine = create_engine(url)
    queue = RunQueue(engine, settings=Settings())
    queue.handler("work")(lambda run: None)
    asked: list[str] = []

    def count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if threading.current_thread().name.startswith("runqueue"):
            asked.append(statement)

    with running(Worker(queue)):
        time.sleep(1)
        event.listen(Engine, "before_cursor_execute", count)
        cpu, before = time.process_time(), time.monotonic()
        time.sleep(10)
        event.remove(Engine, "before_cursor_execute", count)
        seconds = time.monotonic() - before
        assert 0 < len(asked) / seconds <= 2
        assert (time.process_time() - cpu) / seconds < 0.02
    engine.dispose()
