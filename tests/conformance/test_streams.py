"""Fenced transactions, checkpoints, events and waiting."""

from __future__ import annotations

import threading

import pytest
from conformance.driver import claim_one, lose
from sqlalchemy import text

from runqueue import InvalidRun, RunNotFound, RunQueue, RunStatus, Timeout


@pytest.fixture
def lease(q):
    q.enqueue("k", tenant_id="t")
    return claim_one(q).lease


def numbers(q, run_id, after=0):
    return [(event.seq, event.type) for event in q.events(run_id, after)]


def test_rows_events_checkpoint_and_child_commit_together(q, facts, lease):
    facts.sql("create table public.mine (x text)")
    with q.transaction(lease) as tx:
        tx.connection.execute(text("insert into public.mine values ('a')"))
        tx.emit("message", {"text": "hi"})
        tx.emit("tool")
        tx.save_checkpoint({"turn": 1})
        child = tx.enqueue("k", {"part": 1}, tenant_id="t", queue="children")
        assert facts.sql("select 1 from public.mine") == []
        with pytest.raises(RunNotFound):
            q.get(child.id)
        assert numbers(q, lease.run_id) == []
    assert facts.sql("select x from public.mine") == [("a",)]
    assert q.get(child.id).parent_id == lease.run_id
    assert numbers(q, lease.run_id) == [(1, "message"), (2, "tool")]
    assert q.events(lease.run_id)[0].data == {"text": "hi"}
    assert lose(q, facts, lease).checkpoint == {"turn": 1}


def test_an_empty_transaction_is_fenced_too(q, facts, lease):
    with q.transaction(lease):
        pass
    lose(q, facts, lease)
    with pytest.raises(Exception, match="lease lost"), q.transaction(lease):
        pass


def test_what_cannot_be_stored_is_refused_where_it_is_said(q, lease):
    with q.transaction(lease) as tx:
        for act, bad in ((tx.emit, ""), (tx.emit, "\0"), (tx.save_checkpoint, float("nan"))):
            with pytest.raises(InvalidRun):
                act(bad)
        with pytest.raises(InvalidRun):
            tx.emit("x", {"y": "\0"})
        tx.emit("fine")
    assert numbers(q, lease.run_id) == [(1, "fine")]


def test_the_next_attempt_starts_from_the_last_committed_checkpoint(q, facts, lease):
    for turn in range(1, 6):
        with q.transaction(lease) as tx:
            tx.save_checkpoint({"turn": 0})
            tx.save_checkpoint({"turn": turn})
    with pytest.raises(ZeroDivisionError), q.transaction(lease) as tx:  # noqa: PT012
        tx.save_checkpoint({"turn": 6})
        1 / 0  # noqa: B018
    assert lose(q, facts, lease).checkpoint == {"turn": 5}
    assert facts.sql("select array_agg(seq order by seq) from runqueue.agent_run_checkpoints") == [([3, 4, 5],)]


def test_only_the_newest_checkpoints_are_kept(q, facts, lease):
    kept = q.settings.checkpoints_kept
    for turn in range(1, 3 * kept):
        with q.transaction(lease) as tx:
            tx.save_checkpoint({"turn": turn})
        query = "select state_json->'turn' from runqueue.agent_run_checkpoints order by seq"
        assert [x for (x,) in facts.sql(query)] == list(range(max(1, turn - kept + 1), turn + 1))


@pytest.mark.parametrize("how", ["fail", "release", "cancel and retry"])
def test_a_checkpoint_outlives_each_end_of_an_attempt(q, lease, how):
    with q.transaction(lease) as tx:
        tx.save_checkpoint(None)
    with q.transaction(lease) as tx:
        tx.save_checkpoint({"turn": 1})
    if how == "fail":
        q.fail(lease, "x")
    elif how == "release":
        q.release(lease)
    else:
        q.settle_cancelled(lease)
        q.retry(lease.run_id)
    assert claim_one(q).checkpoint == {"turn": 1}


def test_events_resume_exactly_after_any_number(q, lease):
    for n in range(10):
        with q.transaction(lease) as tx:
            for _ in range(n % 3):
                tx.emit(f"e{n}")
    q.fail(lease, "x", retry=False)
    every = numbers(q, lease.run_id)
    assert [seq for seq, _ in every] == list(range(1, len(every) + 1))
    for after in range(len(every) + 2):
        assert numbers(q, lease.run_id, after) == every[after:]
    assert [x.seq for x in q.events(lease.run_id, 2, limit=3)] == [3, 4, 5]


def test_follow_gives_every_event_and_ends_with_the_run(q, engine, lease):
    with q.transaction(lease) as tx:
        tx.emit("first")
    stream = q.follow(lease.run_id, timeout=20)
    assert next(stream).type == "first"

    def others():
        writer = RunQueue(engine)
        for n in range(5):
            with writer.transaction(lease) as tx:
                tx.emit(f"n{n}")
        writer.fail(lease, "over", retry=False)

    thread = threading.Thread(target=others)
    thread.start()
    assert [(x.seq, x.type) for x in stream] == [(n + 2, f"n{n}") for n in range(5)] + [(7, "run.dead")]
    thread.join()
    assert [x.seq for x in q.follow(lease.run_id, after=4)] == [5, 6, 7]


def test_follow_and_wait_give_up_in_time(q, lease):
    with pytest.raises(Timeout):
        next(q.follow(lease.run_id, timeout=0.1))
    with pytest.raises(Timeout):
        q.wait(lease.run_id, 0.1)
    with pytest.raises(RunNotFound):
        q.wait(type(lease.run_id)(int=3), 5)
    with pytest.raises(RunNotFound):
        next(q.follow(type(lease.run_id)(int=3), timeout=5))


@pytest.mark.parametrize("end", ["done", "dead", "cancelled"])
def test_wait_returns_the_ended_run(q, engine, lease, end):
    def later():
        other = RunQueue(engine)
        if end == "done":
            other.complete(lease, {"x": 1})
        elif end == "dead":
            other.fail(lease, "x", retry=False)
        else:
            other.settle_cancelled(lease)

    timer = threading.Timer(0.1, later)
    timer.start()
    assert q.wait(lease.run_id, 20).status == end
    timer.join()
    assert q.wait(lease.run_id, 0.5).status == end
    assert q.get(lease.run_id).status in RunStatus
