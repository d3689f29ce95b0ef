"""Two writers to one run's stream, and checkpoints of a holder that was given up."""

from __future__ import annotations

import random

import pytest
from conformance.driver import claim_one, expire, lose
from races.forced import background, race, result, uncommitted, wait_blocked
from sqlalchemy import create_engine
from support.tools import terminate_backends

from runqueue import LeaseLost, RunQueue
from runqueue.operations import fenced, inspect

EMIT = [("first", "1"), ("second", "2")]


@pytest.fixture
def lease(queue):
    queue.enqueue("k", tenant_id="t")
    return claim_one(queue).lease


def stream(queue, lease, after=0):
    return [(x.seq, x.type) for x in queue.events(lease.run_id, after)]


def emit(queue, lease, *types, checkpoint=None):
    with queue.transaction(lease) as tx:
        for type_ in types:
            tx.emit(type_)
        if checkpoint is not None:
            tx.save_checkpoint(checkpoint)


@pytest.mark.parametrize("commit", [True, False])
def test_the_second_writer_waits_and_numbers_follow_the_commits(queue, engine, lease, commit):
    with uncommitted(engine, lambda c: fenced.write(c, queue.core.ctx, lease, EMIT, None)) as first:
        second = background(queue.cancel, lease.run_id)
        wait_blocked(engine)
        assert stream(queue, lease) == []
        first.commit() if commit else first.rollback()
    result(second)
    before = [(1, "first"), (2, "second")] if commit else []
    assert stream(queue, lease) == [*before, (len(before) + 1, "run.cancel_requested")]


def test_a_reader_never_sees_a_number_before_the_ones_below_it(queue, engine, lease):
    """Two writers in turn hold their transaction open while a reader polls; what it got is the whole, in order."""
    got = []

    def poll():
        got.extend(stream(queue, lease, after=got[-1][0] if got else 0))

    for n in range(5):
        with uncommitted(engine, lambda c: fenced.write(c, queue.core.ctx, lease, EMIT, None)) as first:
            second = background(emit, queue, lease, f"n{n}")
            wait_blocked(engine)
            poll()
            first.rollback() if n % 2 else first.commit()
            poll()
        result(second)
        poll()
    assert got == stream(queue, lease)
    assert [seq for seq, _ in got] == list(range(1, 12))


def test_many_writers_and_a_follower_agree(queue, engine, lease, url, settings):
    follower = background(lambda: [(x.seq, x.type) for x in queue.follow(lease.run_id, timeout=30)])

    def write(n):
        dice = random.Random(n)
        for step in range(12):
            try:
                with queue.transaction(lease) as tx:
                    for part in range(dice.randint(1, 3)):
                        tx.emit(f"{n}.{step}.{part}")
                    if dice.random() < 0.3:
                        raise ZeroDivisionError
            except ZeroDivisionError:
                pass

    assert race(engine, 4, write) == [None] * 4
    queue.complete(lease)
    every = stream(queue, lease)
    assert result(follower) == every
    assert [seq for seq, _ in every] == list(range(1, len(every) + 1))
    for n in range(4):
        mine = [type_ for _, type_ in every if type_.startswith(f"{n}.")]
        assert mine == sorted(mine, key=lambda x: [int(y) for y in x.split(".")])


def test_a_follower_that_resumes_anywhere_gets_exactly_the_rest(queue, lease):
    emit(queue, lease, *(f"e{n}" for n in range(6)))
    queue.fail(lease, "x", retry=False)
    every = stream(queue, lease)
    for after in range(len(every) + 1):
        assert [(x.seq, x.type) for x in queue.follow(lease.run_id, after, timeout=10)] == every[after:]


def test_a_cancel_in_the_hosts_open_transaction_holds_back_events_and_loses_none(queue, engine, lease):
    with uncommitted(engine, lambda c: inspect.cancel(c, queue.core.ctx, lease.run_id)) as host:
        writing = background(emit, queue, lease, "mine")
        wait_blocked(engine)
        host.rollback()
    result(writing)
    assert stream(queue, lease) == [(1, "mine")]


def test_a_zombies_checkpoint_is_refused_and_the_newer_ones_stay(queue, facts, lease):
    emit(queue, lease, "one", checkpoint={"turn": 1})
    newer = lose(queue, facts, lease)
    assert newer.checkpoint == {"turn": 1}
    for turn in range(2, 6):
        emit(queue, newer.lease, f"turn {turn}", checkpoint={"turn": turn})
    before = facts.everything()
    with pytest.raises(LeaseLost):
        emit(queue, lease, "zombie", checkpoint={"turn": 2, "zombie": True})
    assert facts.everything() == before
    assert lose(queue, facts, newer.lease).checkpoint == {"turn": 5}


def test_a_transaction_that_lasts_beyond_the_lease_is_refused_at_its_end(queue, facts, lease):
    facts.sql("create table public.mine (x text)")
    before = None
    with pytest.raises(LeaseLost), queue.transaction(lease) as tx:  # noqa: PT012
        tx.connection.exec_driver_sql("insert into public.mine values ('zombie')")
        tx.emit("zombie")
        tx.save_checkpoint({"zombie": True})
        newer = lose(queue, facts, lease)
        before = facts.everything()
    assert facts.everything() == before
    queue.complete(newer.lease)


@pytest.mark.parametrize("after", ["begin", "rows", "emit", "checkpoint", "write"])
def test_a_connection_cut_at_any_point_leaves_both_or_neither(queue, engine, url, facts, lease, after):
    doomed = RunQueue(
        create_engine(url, connect_args={"application_name": "cut-me"}), settings=queue.settings,
        claim=queue.core.ctx.policy,
    )  # fmt: skip
    facts.sql("create table public.mine (x text)")
    before = facts.everything()
    with pytest.raises(Exception, match=r"terminat|closed|lost"), doomed.transaction(lease) as tx:  # noqa: PT012
        for step in ("begin", "rows", "emit", "checkpoint", "write"):
            if step == "rows":
                tx.connection.exec_driver_sql("insert into public.mine values ('x')")
            elif step == "emit":
                tx.emit("e")
            elif step == "checkpoint":
                tx.save_checkpoint({"x": 1})
            elif step == "write":
                fenced.write(tx.connection, queue.core.ctx, lease, [("e", "1")], '{"x": 1}')
            if step == after:
                terminate_backends(url, "cut-me")
                break
    doomed.engine.dispose()
    assert facts.everything() == before
    emit(queue, lease, "e", checkpoint={"x": 1})
    assert stream(queue, lease) == [(1, "e")]
    expire(facts, lease)
    queue.reap()
    assert claim_one(queue).checkpoint == {"x": 1}
