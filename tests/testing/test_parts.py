"""The fake handlers and the fault points do what they say, and the fixtures see what goes wrong."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from sqlalchemy import text
from support.here import running

from runqueue import RunStatus, Worker, hookimpl
from runqueue.testing import Blocks, Fails, PluginSuite, Records
from runqueue.testing.rig import together


class TestHandlers(PluginSuite):
    def test_records_notes_its_calls(self, queue):
        queue.handler("k")(handler := Records({"ok": True}))
        run = queue.enqueue("k", {"x": 1}, tenant_id="acme")
        Worker(queue).drain()
        [call] = handler.calls
        assert (call.run_id, call.tenant_id, call.attempt, call.input) == (run.id, "acme", 1, {"x": 1})
        assert queue.get(run.id).result == {"ok": True}

    def test_fails_fails_so_many_times(self, queue):
        queue.handler("k")(handler := Fails(2, LookupError("no")))
        run = queue.enqueue("k", tenant_id="acme", max_attempts=5)
        Worker(queue).drain()
        assert [x.attempt for x in handler.calls] == [1, 2, 3]
        assert queue.get(run.id).status is RunStatus.DONE

    def test_blocks_waits_until_it_is_told(self, queue):
        queue.handler("k")(handler := Blocks("through"))
        run = queue.enqueue("k", tenant_id="acme")
        with running(Worker(queue)):
            handler.await_calls(1)
            assert queue.get(run.id).status is RunStatus.LEASED
            handler.open()
            assert queue.wait(run.id, 10).result == "through"

    def test_blocks_stops_when_the_run_is_to_stop(self, queue):
        queue.handler("k")(handler := Blocks())
        run = queue.enqueue("k", tenant_id="acme")
        with running(Worker(queue)):
            handler.await_calls(1)
            queue.cancel(run.id)
            assert queue.wait(run.id, 10).status is RunStatus.CANCELLED


class TestFaults(PluginSuite):
    def test_cut_ends_all_sessions_of_queues(self, rig):
        with rig.engine.connect() as connection:
            backend = connection.execute(text("select pg_backend_pid()")).scalar_one()
            assert rig.faults.cut() >= 1
            connection.invalidate()
        assert not rig.sql("select 1 from pg_stat_activity where pid = :pid", pid=backend)

    def test_expire_ends_a_lease_and_only_a_lease(self, rig):
        [run] = rig.fill(1)
        [claimed] = rig.queue.claim("w")
        rig.faults.expire(claimed.lease)
        [again] = rig.rescue(rig.another())
        rig.queue.complete(again.lease)
        with pytest.raises(AssertionError, match="1 of 1 runs are not leased"):
            rig.faults.expire(claimed.lease)
        with pytest.raises(AssertionError, match="it is done"):
            rig.lease_of(run)

    def test_a_worker_is_killed_where_it_is_told_to_be(self, rig):
        runs = [rig.queue.enqueue("victim", tenant_id="t") for _ in range(2)]
        rig.faults.kill_worker(self, "saved", ("first", "second"))
        [held] = [x for x in runs if rig.status(x) == "leased"]
        rig.faults.expire(rig.lease_of(held))
        assert {x.run.id: x.checkpoint for x in rig.rescue(rig.queue)}[held.id] == "first"


class Odd:
    """Raises in an observer."""

    @hookimpl
    def runqueue_runs_enqueued(self):
        raise LookupError("odd")


class TestObservers(PluginSuite):
    plugins = (Odd(),)

    def test_an_observer_that_raises_is_seen(self, rig):
        rig.fill(1)
        with pytest.raises(AssertionError, match="'Odd': 1"):
            rig.check_observers()
        rig.queues.clear()


def test_together_raises_what_one_thread_raised():
    stop = threading.Event()

    def work(n):
        if n == 1:
            stop.set()
            raise LookupError("in a thread")
        assert stop.wait(10)
        return n

    with pytest.raises(LookupError, match="in a thread"):
        together(3, work)
    assert together(3, lambda n: n) == [0, 1, 2]


def test_the_library_and_the_kit_can_be_imported_without_pytest():
    code = "import sys; sys.modules['pytest'] = None; import runqueue.queue; from runqueue.testing import Fails, audit"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)
