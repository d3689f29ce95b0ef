"""`wait` and `follow` end when the run does, or say why not; however many there are, they hold no connection each."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, NullPool, create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from support.proxy import Proxy
from support.tools import eventually

from runqueue import AsyncRunQueue, NewRun, RunNotFound, RunQueue, Settings
from runqueue.errors import Timeout

SOON = 5.0
ENDS = ["done", "dead", "cancelled"]


def _watching() -> bool:
    return "runqueue-watch" in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def waits(url: str, settings: Settings, request: pytest.FixtureRequest) -> Iterator[Any]:
    """`wait(run_id, timeout)` and `follow(run_id, timeout)` of both faces, as blocking functions."""
    with asyncio.Runner() as runner:
        engine = create_engine(url)
        async_engine = create_async_engine(url)
        sync, queue = RunQueue(engine, settings=settings), AsyncRunQueue(async_engine, settings=settings)

        class Async:
            def wait(self, run_id: Any, timeout: float | None) -> Any:
                return runner.run(queue.wait(run_id, timeout))

            def follow(self, run_id: Any, timeout: float | None) -> list[Any]:
                async def collect() -> list[Any]:
                    return [event async for event in queue.follow(run_id, timeout=timeout)]

                return runner.run(collect())

        class Sync:
            def wait(self, run_id: Any, timeout: float | None) -> Any:
                return sync.wait(run_id, timeout)

            def follow(self, run_id: Any, timeout: float | None) -> list[Any]:
                return list(sync.follow(run_id, timeout=timeout))

        yield Async() if request.param == "async" else Sync()
        eventually(lambda: not _watching(), 5, what="the end of the watching thread")
        runner.run(queue.close())  # the task that looks may have a connection while nobody runs its loop
        sync.close()
        runner.run(async_engine.dispose())
        engine.dispose()


both = pytest.mark.parametrize("waits", ["sync", "async"], indirect=True)


def _end(queue: RunQueue, run_id: Any, how: str) -> None:
    if how == "cancelled":
        queue.cancel(run_id)
        return
    [claimed] = queue.claim("w", kinds=["k"])
    assert claimed.run.id == run_id
    if how == "done":
        queue.complete(claimed.lease)
    else:
        queue.fail(claimed.lease, "boom", retry=False)


@both
def test_run_that_has_ended_is_returned_at_once(waits: Any, plain: RunQueue) -> None:
    for how in ENDS:
        run = plain.enqueue("k", tenant_id="acme")
        _end(plain, run.id, how)
        for timeout in (None, SOON, 0):
            assert waits.wait(run.id, timeout).status == how
            waits.follow(run.id, timeout)


@both
def test_run_that_ends_meanwhile_is_returned(waits: Any, plain: RunQueue) -> None:
    for how in ENDS:
        run = plain.enqueue("k", tenant_id="acme")
        timer = threading.Timer(0.3, _end, [plain, run.id, how])
        timer.start()
        assert waits.wait(run.id, SOON).status == how
        timer.join()


@both
def test_failed_attempt_is_no_end(waits: Any, plain: RunQueue) -> None:
    run = plain.enqueue("k", tenant_id="acme", max_attempts=2)
    [claimed] = plain.claim("w", kinds=["k"])
    plain.fail(claimed.lease, "boom", delay=0)
    with pytest.raises(Timeout):
        waits.wait(run.id, 0.3)
    timer = threading.Timer(0.2, _end, [plain, run.id, "done"])
    timer.start()
    assert waits.wait(run.id, SOON).attempts == 2
    timer.join()


@both
def test_redriven_run_is_waited_for_again(waits: Any, plain: RunQueue) -> None:
    run = plain.enqueue("k", tenant_id="acme")
    _end(plain, run.id, "cancelled")
    plain.retry(run.id)
    with pytest.raises(Timeout):
        waits.wait(run.id, 0.3)


@both
def test_missing_run_is_said_to_be_missing(waits: Any) -> None:
    for ask in (waits.wait, waits.follow):
        for timeout in (None, SOON, 0):
            with pytest.raises(RunNotFound):
                ask(uuid4(), timeout)


@both
def test_timeout_comes_in_time(waits: Any, plain: RunQueue) -> None:
    run = plain.enqueue("k", tenant_id="acme")
    for ask in (waits.wait, waits.follow):
        for timeout in (0, 0.3):
            before = time.monotonic()
            with pytest.raises(Timeout):
                ask(run.id, timeout)
            assert timeout <= time.monotonic() - before < timeout + SOON


@both
def test_follower_gets_every_event_once_and_ends_with_the_run(waits: Any, plain: RunQueue) -> None:
    run = plain.enqueue("k", tenant_id="acme")
    [claimed] = plain.claim("w", kinds=["k"], lease=60)

    def write() -> None:
        for n in range(20):
            with plain.transaction(claimed.lease) as tx:
                tx.emit("n", n)
        plain.complete(claimed.lease)

    writer = threading.Timer(0.1, write)
    writer.start()
    events = waits.follow(run.id, SOON)
    writer.join()
    assert [(event.seq, event.data) for event in events] == [(n + 1, n) for n in range(20)]


def _tight(url: str) -> Engine:
    return create_engine(url, pool_size=1, max_overflow=0)


def test_three_hundred_threads_wait_on_one_connection(url: str, plain: RunQueue) -> None:
    engine = _tight(url)
    queue = RunQueue(engine, settings=plain.settings)
    runs = plain.enqueue_many([NewRun(kind="k", tenant_id="acme")] * 3)
    with ThreadPoolExecutor(300) as pool:
        waiters = [pool.submit(queue.wait, runs[n % 3].id, 30) for n in range(300)]
        eventually(lambda: len(queue._watcher._wanted) == 3, 10, what="the waiters")
        for run in runs:
            plain.cancel(run.id)
        assert {waiter.result(30).status for waiter in waiters} == {"cancelled"}
    engine.dispose()


async def test_three_hundred_tasks_wait_on_one_connection(url: str, plain: RunQueue) -> None:
    engine = create_async_engine(url, pool_size=1, max_overflow=0)
    queue = AsyncRunQueue(engine, settings=plain.settings)
    runs = plain.enqueue_many([NewRun(kind="k", tenant_id="acme")] * 3)
    async with asyncio.TaskGroup() as group:
        waiters = [group.create_task(queue.wait(runs[n % 3].id, 30)) for n in range(300)]
        gone = group.create_task(queue.wait(runs[0].id, 30))
        await asyncio.sleep(0.2)
        gone.cancel()
        for run in runs:
            await asyncio.to_thread(plain.cancel, run.id)
    assert {waiter.result().status for waiter in waiters} == {"cancelled"}
    assert not queue._watcher()._wanted
    await engine.dispose()


def test_waiter_survives_a_lost_connection(proxy: Proxy, plain: RunQueue) -> None:
    engine = create_engine(proxy.url, connect_args={"connect_timeout": 1})
    queue = RunQueue(engine, settings=plain.settings)
    run = plain.enqueue("k", tenant_id="acme")
    with ThreadPoolExecutor(1) as pool:
        waiter = pool.submit(queue.wait, run.id, 20)
        eventually(lambda: queue._watcher._seen, 10, what="a look")
        proxy.refuse()
        proxy.cut()
        plain.cancel(run.id)
        time.sleep(0.3)
        proxy.restore()
        assert waiter.result(20).status == "cancelled"
    engine.dispose()


def test_event_loops_share_an_async_queue(url: str, settings: Settings) -> None:
    queue = AsyncRunQueue(create_async_engine(url, poolclass=NullPool), settings=settings)

    async def cancelled_later() -> str:
        run = await queue.enqueue("work", tenant_id="acme")
        waiting = asyncio.create_task(queue.wait(run.id, SOON))
        await asyncio.sleep(0)
        await queue.cancel(run.id)
        ended = await waiting
        if (task := queue._watcher()._task) is not None:
            await task
        return str(ended.status)

    assert [asyncio.run(cancelled_later()) for _ in range(2)] == ["cancelled"] * 2
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: asyncio.run(cancelled_later()), range(4))) == ["cancelled"] * 4
