"""What a handler can say next, by raising: Retry, Discard, Snooze; and what its timeout says."""

from __future__ import annotations

import asyncio
import math
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from support.effects import Effects
from support.here import running
from support.tools import eventually

from runqueue import Discard, Retry, RunContext, RunQueue, Snooze, Worker


def _once(fx: Effects, error: BaseException) -> Any:
    """Raises the error in its first execution, and returns in the second."""

    def handler(run: Any) -> str:
        fx.note(run)
        if len(fx.all(run.id)) == 1:
            raise error
        return "done"

    return handler


def test_retry_is_charged_and_waits_as_it_says(plain: RunQueue, fx: Effects) -> None:
    plain.handler("work")(_once(fx, Retry("not yet", delay=1.0)))
    with running(Worker(plain)):
        run = plain.wait(plain.enqueue("work", tenant_id="acme").id, 10)
    assert (run.status, run.attempts) == ("done", 2)
    assert fx.gaps(run.id)[0] >= 1.0
    assert [event.data["error_code"] for event in plain.events(run.id)] == ["Retry"]


def test_snooze_is_not_charged(plain: RunQueue, fx: Effects) -> None:
    plain.handler("work")(_once(fx, Snooze(1.0)))
    with running(Worker(plain)):
        run = plain.wait(plain.enqueue("work", tenant_id="acme", max_attempts=1).id, 10)
    assert (run.status, run.attempts, fx.attempts(run.id)) == ("done", 1, [1, 1])
    assert fx.gaps(run.id)[0] >= 1.0
    assert [event.type for event in plain.events(run.id)] == ["run.released"]


def test_discard_is_final(plain: RunQueue, fx: Effects) -> None:
    plain.handler("work")(_once(fx, Discard("no such order")))
    with running(Worker(plain)):
        run = plain.wait(plain.enqueue("work", tenant_id="acme").id, 10)
    assert (run.status, run.attempts, run.error_code, run.error_message) == ("dead", 1, "Discard", "no such order")
    assert fx.attempts(run.id) == [1]


NONSENSE: list[Any] = [-1.0, math.nan, math.inf, 1e300, "soon", timedelta(days=-1), datetime.now(UTC), None]


@pytest.mark.parametrize("make", [lambda x: Retry(delay=x), Snooze], ids=["retry", "snooze"])
def test_nonsensical_delay_settles_the_run_and_spares_the_worker(make: Any, plain: RunQueue) -> None:
    @plain.handler("odd")
    def odd(run: Any) -> None:
        raise make(NONSENSE[run.input])

    plain.handler("innocent")(lambda run: "done")
    with running(Worker(plain)):
        runs = [plain.enqueue("odd", n, tenant_id="acme", max_attempts=1) for n in range(len(NONSENSE) - 1)]
        for run in runs:
            dead = plain.wait(run.id, 10)
            assert (dead.status, dead.error_code) == ("dead", "InvalidRun")
        innocent = plain.enqueue("innocent", tenant_id="acme")
        assert plain.wait(innocent.id, 10).status == "done"


def test_timedelta_is_a_delay(plain: RunQueue, fx: Effects) -> None:
    plain.handler("work")(_once(fx, Snooze(timedelta(milliseconds=700))))  # type: ignore[arg-type]
    with running(Worker(plain)):
        run = plain.wait(plain.enqueue("work", tenant_id="acme").id, 10)
    assert fx.gaps(run.id)[0] >= 0.7


@pytest.mark.parametrize("how", ["async", "sync"])
def test_timeout_ends_an_attempt_as_failed(how: str, queue: RunQueue, fx: Effects) -> None:
    if how == "async":

        @queue.handler("slow", timeout=0.5)
        async def slow(run: RunContext) -> None:
            await asyncio.to_thread(fx.note, run)
            await asyncio.sleep(60)

    else:

        @queue.handler("slow", timeout=0.5)
        def sync_slow(run: Any) -> None:
            fx.note(run)
            assert run.wait_cancelled(60)
            run.raise_if_cancelled()

    with running(Worker(queue)):
        run = queue.enqueue("slow", tenant_id="acme", max_attempts=2)
        dead = queue.wait(run.id, 15)
    assert (dead.status, dead.error_code, dead.attempts) == ("dead", "timeout", 2)
    assert fx.attempts(run.id) == [1, 2]
    assert fx.gaps(run.id)[0] >= 0.5


def test_time_left_counts_down_to_the_timeout(plain: RunQueue) -> None:
    seen: list[float | None] = []

    @plain.handler("limited", timeout=60)
    def limited(run: Any) -> None:
        seen.append(run.time_left)
        time.sleep(0.1)
        seen.append(run.time_left)

    plain.handler("unlimited")(lambda run: seen.append(run.time_left))
    with running(Worker(plain)):
        plain.wait(plain.enqueue("limited", tenant_id="acme").id, 10)
        plain.wait(plain.enqueue("unlimited", tenant_id="acme").id, 10)
    first, second, none = seen
    assert first is not None
    assert second is not None
    assert 59 < second <= first - 0.1 < 60
    assert none is None


def test_lost_run_that_must_not_be_tried_again_is_dead(plain: RunQueue, fx: Effects) -> None:
    """`on_lost="fail"` is recorded with the run at its claim, for whoever sweeps it."""
    plain.handler("once", on_lost="fail")(lambda run: None)
    run = plain.enqueue("once", tenant_id="acme")
    plain.claim("a worker that is lost", kinds=["once"], lease=0.5)
    other = RunQueue(plain.engine, settings=plain.settings)
    other.handler("else")(lambda run: None)
    with running(Worker(other)):
        eventually(lambda: plain.get(run.id).status.terminal, 10, what="the end")
    dead = plain.get(run.id)
    assert (dead.status, dead.attempts, dead.error_code) == ("dead", 1, "lease_expired")


def test_object_that_is_called_as_a_coroutine_is_one(queue: RunQueue) -> None:
    class Agent:
        async def __call__(self, run: RunContext) -> str:
            await run.emit("step")
            return "done"

    queue.handler("agent")(Agent())
    run = queue.enqueue("agent", tenant_id="acme")
    Worker(queue).drain()
    assert queue.get(run.id).result == "done"
