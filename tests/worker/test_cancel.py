"""A stop request reaches a run in whatever state it is, also when its handler or its worker no longer hears."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from support.effects import Effects
from support.here import running
from support.tools import eventually

from runqueue import LeaseLost, RunContext, RunQueue, Settings, Worker


def test_cooperative_handlers_stop_and_their_last_words_are_kept(queue: RunQueue, fx: Effects) -> None:
    @queue.handler("async", cancel_grace=30)
    async def async_(run: RunContext) -> None:
        await asyncio.to_thread(fx.note, run)
        await run.wait_cancelled()
        await run.emit("cleaned up")
        run.raise_if_cancelled()

    @queue.handler("sync", cancel_grace=30)
    def sync(run: Any) -> None:
        fx.note(run)
        assert run.wait_cancelled(30)
        run.emit("cleaned up")
        run.raise_if_cancelled()

    with running(Worker(queue)):
        for kind in ("async", "sync"):
            run = queue.enqueue(kind, tenant_id="acme")
            fx.await_start(run.id)
            queue.cancel(run.id, "no longer needed")
            ended = queue.wait(run.id, 10)
            assert (ended.status, ended.attempts, ended.cancel_reason) == ("cancelled", 1, "no longer needed")
            types = [event.type for event in queue.events(run.id)]
            assert types == ["run.cancel_requested", "cleaned up", "run.cancelled"]


def test_handler_that_does_not_listen_is_cancelled_after_its_grace(plain: RunQueue, fx: Effects) -> None:
    forced = threading.Event()

    @plain.handler("deaf", cancel_grace=0.3)
    async def deaf(run: RunContext) -> None:
        await asyncio.to_thread(fx.note, run)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            forced.set()
            raise

    with running(Worker(plain)):
        run = plain.enqueue("deaf", tenant_id="acme")
        fx.await_start(run.id)
        plain.cancel(run.id)
        assert plain.wait(run.id, 10).status == "cancelled"
        assert forced.is_set()


@pytest.mark.parametrize("how", ["async", "sync"])
def test_handler_that_cannot_be_stopped_is_given_up_and_cannot_write(how: str, queue: RunQueue, fx: Effects) -> None:
    go, late = threading.Event(), list[BaseException]()

    if how == "async":

        @queue.handler("deaf", cancel_grace=0.1)
        async def deaf(run: RunContext) -> str:
            await asyncio.to_thread(fx.note, run)
            while not go.is_set():
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    continue
            try:
                await run.emit("late")
            except LeaseLost as error:
                late.append(error)
            return "late"

    else:

        @queue.handler("deaf", cancel_grace=0.1)
        def sync_deaf(run: Any) -> str:
            fx.note(run)
            go.wait(30)
            try:
                run.emit("late")
            except LeaseLost as error:
                late.append(error)
            return "late"

    with running(Worker(queue)):
        run = queue.enqueue("deaf", tenant_id="acme")
        fx.await_start(run.id)
        queue.cancel(run.id)
        ended = queue.wait(run.id, 10)
        go.set()
        eventually(lambda: late, 10, what="the refusal")
    assert queue.get(run.id) == ended
    assert ended.status == "cancelled"
    assert [event.type for event in queue.events(run.id)] == ["run.cancel_requested", "run.cancelled"]


def test_run_that_returns_although_it_was_asked_to_stop_is_done(plain: RunQueue, fx: Effects) -> None:
    @plain.handler("quick")
    def quick(run: Any) -> str:
        fx.note(run)
        run.wait_cancelled(30)
        return "finished"

    with running(Worker(plain)):
        run = plain.enqueue("quick", tenant_id="acme")
        fx.await_start(run.id)
        plain.cancel(run.id)
        ended = plain.wait(run.id, 10)
    assert (ended.status, ended.result) == ("done", "finished")
    assert ended.cancel_requested_at is not None


def test_cancelled_run_whose_worker_is_dead_ends_as_cancelled(queue: RunQueue, fx: Effects) -> None:
    queue.handler("work")(lambda run: fx.note(run))
    run = queue.enqueue("work", tenant_id="acme")
    queue.claim("a worker that is lost", kinds=["work"], lease=0.5)
    queue.cancel(run.id)
    with running(Worker(queue)):
        assert queue.wait(run.id, 10).status == "cancelled"
    assert fx.attempts(run.id) == []


def test_request_is_heard_without_a_wake_up(plain: RunQueue, fx: Effects) -> None:
    """The next heartbeat brings it."""
    queue = RunQueue(plain.engine, settings=Settings(**{**vars(plain.settings), "notify": False, "listen": False}))

    @queue.handler("work")
    async def work(run: RunContext) -> None:
        await asyncio.to_thread(fx.note, run)
        await run.wait_cancelled()
        run.raise_if_cancelled()

    with running(Worker(queue)):
        run = queue.enqueue("work", tenant_id="acme")
        fx.await_start(run.id)
        queue.cancel(run.id)
        assert queue.wait(run.id, 10).status == "cancelled"
