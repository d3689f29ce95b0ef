"""A thread cannot be killed: while it lives, it keeps its slot, and its run does not start beside it."""

from __future__ import annotations

import threading

import pytest
from support.effects import Effects
from support.fleet import both_policies, slow
from support.here import running
from support.tools import eventually

from runqueue import LeaseLost, RunQueue, Worker
from runqueue.worker import SyncRunContext


def _threads() -> int:
    return sum(thread.name.startswith("runqueue-run-") for thread in threading.enumerate())


@both_policies
def test_stuck_thread_keeps_its_slot_and_its_run_waits(queue: RunQueue, fx: Effects) -> None:
    go, late = threading.Event(), list[BaseException]()

    @queue.handler("deaf", timeout=0.5)
    def deaf(run: SyncRunContext) -> int:
        fx.note(run)
        if run.attempt == 1:
            go.wait(30)
            try:
                run.emit("late")
            except LeaseLost as error:
                late.append(error)
        return run.attempt

    queue.handler("other")(lambda run: fx.note(run))
    most = 0
    with running(Worker(queue, concurrency=2)) as worker:
        run = queue.enqueue("deaf", tenant_id="acme", max_attempts=5)
        eventually(lambda: worker.stats.stuck_threads == 1, 10, what="a stuck thread")
        others = [queue.enqueue("other", tenant_id="acme") for _ in range(20)]

        def released() -> bool:
            nonlocal most
            most = max(most, _threads())
            return "run.released" in [event.type for event in queue.events(run.id)]

        eventually(released, 10, what="attempt 2 being given back")
        for other in others:
            assert queue.wait(other.id, 10).status == "done"
        assert fx.attempts(run.id) == [1]
        assert most <= 2
        assert worker.stats.stuck_threads == 1

        go.set()
        done = queue.wait(run.id, 15)
        assert (done.status, done.attempts, done.result) == ("done", 2, 2)
        assert worker.stats.stuck_threads == 0
    assert fx.attempts(run.id) == [1, 2]
    assert len(late) == 1
    assert "late" not in [event.type for event in queue.events(run.id)]


@pytest.mark.parametrize("concurrency", [slow(1), 2])
def test_no_more_threads_than_slots_however_many_are_stuck(concurrency: int, plain: RunQueue, fx: Effects) -> None:
    go = threading.Event()

    @plain.handler("deaf", timeout=0.2)
    def deaf(run: SyncRunContext) -> None:
        fx.note(run)
        go.wait(30)

    with running(Worker(plain, concurrency=concurrency)) as worker:
        runs = [plain.enqueue("deaf", tenant_id="acme", max_attempts=1) for _ in range(4)]
        eventually(lambda: worker.stats.stuck_threads == concurrency, 10, what="stuck threads in every slot")
        plain.wait(runs[0].id, 10)
        eventually(lambda: worker.stats.failed == concurrency, 10, what="the settling of the stuck runs")
        assert _threads() == concurrency
        assert worker.stats.claimed == concurrency
        go.set()
        for run in runs:
            assert plain.wait(run.id, 15).status in ("dead", "done")
