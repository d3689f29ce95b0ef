"""Whatever a handler raises ends its run, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from support.here import running
from support.tools import eventually

from runqueue import RunContext, RunQueue, Settings, Worker

RAISED: dict[str, Callable[[], BaseException]] = {
    "CancelledError": asyncio.CancelledError,
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "GeneratorExit": GeneratorExit,
    "BaseExceptionGroup": lambda: BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError("inner")]),
    "StopIteration": lambda: StopIteration(1),
    "StopAsyncIteration": StopAsyncIteration,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
}


def _raiser(make: Callable[[], BaseException]) -> Callable[[Any], None]:
    def handler(run: Any) -> None:
        raise make()

    return handler


def _async_raiser(make: Callable[[], BaseException]) -> Callable[[Any], Any]:
    async def handler(run: RunContext) -> None:
        await asyncio.sleep(0)
        raise make()

    return handler


def test_base_exceptions_fail_their_run_alone(queue: RunQueue) -> None:
    for name, make in RAISED.items():
        queue.handler(f"sync {name}")(_raiser(make))
        queue.handler(f"async {name}")(_async_raiser(make))
    queue.handler("innocent")(lambda run: "done")
    with running(Worker(queue, concurrency=3)) as worker:
        runs = {kind: queue.enqueue(kind, tenant_id="acme", max_attempts=1) for kind in queue.core.handlers}
        for kind, run in runs.items():
            ended = queue.wait(run.id, 10)
            if kind == "innocent":
                assert ended.status == "done"
                continue
            how, _, name = kind.partition(" ")
            # a coroutine cannot raise StopIteration: Python makes it a RuntimeError
            code = "RuntimeError" if (how, name) == ("async", "StopIteration") else name
            assert (kind, ended.status, ended.error_code) == (kind, "dead", code)
        assert worker.stats.running == 0
        assert queue.wait(queue.enqueue("innocent", tenant_id="acme").id, 10).status == "done"


def test_unsolicited_cancellation_is_a_failure_not_a_cancel(plain: RunQueue) -> None:
    plain.handler("itself")(_async_raiser(asyncio.CancelledError))
    with running(Worker(plain)):
        run = plain.wait(plain.enqueue("itself", tenant_id="acme", max_attempts=2).id, 10)
    assert (run.status, run.attempts) == ("dead", 2)
    assert "nobody had asked" in str(run.error_message)


def test_swallowed_cancellation_is_given_up(plain: RunQueue, settings: Settings) -> None:
    go = threading.Event()
    swallowed = threading.Event()

    @plain.handler("stubborn", timeout=0.3)
    async def stubborn(run: RunContext) -> str:
        while not go.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                swallowed.set()
        return "late"

    plain.handler("next")(lambda run: "done")
    with running(Worker(plain, concurrency=1)) as worker:
        run = plain.enqueue("stubborn", tenant_id="acme", max_attempts=1)
        assert swallowed.wait(10)
        dead = plain.wait(run.id, 10)
        assert (dead.status, dead.error_code) == ("dead", "timeout")
        # its slot is free, though it still runs
        assert plain.wait(plain.enqueue("next", tenant_id="acme").id, 10).status == "done"
        go.set()
        eventually(lambda: worker.stats.running == 0, 5, what="its end")
    assert plain.get(run.id) == dead


def test_error_while_being_cancelled_ends_as_cancelled(plain: RunQueue) -> None:
    started = threading.Event()

    @plain.handler("messy", cancel_grace=0)
    async def messy(run: RunContext) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("clean-up failed")

    with running(Worker(plain)):
        run = plain.enqueue("messy", tenant_id="acme")
        assert started.wait(10)
        plain.cancel(run.id)
        assert plain.wait(run.id, 10).status == "cancelled"
