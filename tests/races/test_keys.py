"""Idempotency keys, raced for and confused."""

from __future__ import annotations

import itertools
import unicodedata

import pytest
from conformance.driver import claim_one, expire
from races.forced import background, race, result, uncommitted, wait_blocked
from sqlalchemy import create_engine

from runqueue import IdempotencyConflict, NewRun, RunQueue, RunStatus

CALLERS = 50


@pytest.fixture
def wide(engine, policy, settings):
    made = create_engine(engine.url, pool_size=CALLERS)
    yield RunQueue(made, claim=policy, settings=settings)
    made.dispose()


def enqueue(queue, connection=None, **options):
    return queue.enqueue("k", 1, **{"tenant_id": "t", "idempotency_key": "x", "connection": connection} | options)


@pytest.mark.parametrize("before", ["nothing", "pending", "leased", "expired", "done", "dead", "cancelled"])
def test_fifty_at_once_get_one_run_though_half_roll_back(wide, facts, before):
    if before != "nothing":
        run = enqueue(wide)
        if before in {"leased", "expired", "done", "dead"}:
            lease = claim_one(wide).lease
            if before == "expired":
                expire(facts, lease)
            elif before != "leased":
                wide.complete(lease) if before == "done" else wide.fail(lease, "x", retry=False)
        elif before == "cancelled":
            wide.cancel(run.id)

    def caller(n):
        with wide.engine.connect() as connection, connection.begin() as transaction:
            got = enqueue(wide, connection)
            if n % 2:
                transaction.rollback()
        return got.id if n % 2 == 0 else None

    answers = race(wide.engine, CALLERS, caller)
    assert not [x for x in answers if isinstance(x, BaseException)]
    [kept] = {x for x in answers if x is not None}
    assert [x.id for x in wide.list().runs] == [kept]
    if before != "nothing":
        assert kept == run.id
        assert wide.get(kept).status == ("leased" if before == "expired" else before)


@pytest.mark.parametrize("commit", [True, False])
def test_a_caller_that_waited_gets_the_others_run_or_makes_its_own(queue, engine, commit):
    with uncommitted(engine) as first:
        theirs = enqueue(queue, first)
        waiting = background(enqueue, queue)
        wait_blocked(engine)
        first.commit() if commit else first.rollback()
    ours = result(waiting)
    assert (ours.id == theirs.id) is commit
    assert queue.get(ours.id) == ours


def test_a_caller_that_waited_is_refused_for_another_input(queue, engine):
    with uncommitted(engine, lambda c: enqueue(queue, c)) as first:
        waiting = background(lambda: queue.enqueue("k", 2, tenant_id="t", idempotency_key="x"))
        wait_blocked(engine)
        first.commit()
    with pytest.raises(IdempotencyConflict):
        result(waiting)


def test_the_run_may_be_settled_while_a_caller_asks_for_its_key(queue, engine, facts):
    from runqueue.operations import settle

    run = enqueue(queue)
    lease = claim_one(queue).lease
    with uncommitted(engine, lambda c: settle.complete_many(c, queue.core.ctx, [(lease, None)])) as ack:
        assert enqueue(queue).status is RunStatus.LEASED
        ack.commit()
    assert enqueue(queue).status is RunStatus.DONE
    assert enqueue(queue).id == run.id


def test_batches_of_the_same_keys_in_opposite_orders_do_not_deadlock(wide):
    new = [NewRun(kind="k", tenant_id="t", idempotency_key=f"{n:03}") for n in range(100)]
    answers = race(wide.engine, 8, lambda n: wide.enqueue_many(new if n % 2 else new[::-1]))
    assert not [x for x in answers if isinstance(x, BaseException)]
    assert {frozenset(run.id for run in x) for x in answers} == {frozenset(run.id for run in answers[0])}
    assert len(wide.list(limit=1000).runs) == 100


PLACES = [
    ("a", "k", "x"), ("b", "k", "x"), ("a", "j", "x"),
    ("a:b", "k", "c"), ("a", "k", "b:c"), ("a", "b:k", "c"), ("a\x1fb", "k", "c"), ("a", "kx", "y"),
    ("A", "k", "x"), ("a", "k", "X"), ("a ", "k", "x"), ("a", "k", " x"),
    ("a", "k", unicodedata.normalize("NFC", "é")), ("a", "k", unicodedata.normalize("NFD", "é")),
    ("a", "k", "x" * 1024), ("a", "k", "x" * 1023 + "y"), ("a", "k", "日" * 341), ("日" * 85, "語" * 85, "k" * 1024),
    ("a", "k", "%"), ("a", "k", "_"), ("a", "k", "'\"\\"), ("a", "k", "null"), ("a", "k", "😀"),
]  # fmt: skip


def test_a_key_belongs_to_its_tenant_and_kind_and_is_literal(queue):
    assert len(set(PLACES)) == len(PLACES)
    made = {x: queue.enqueue(x[1], list(x), tenant_id=x[0], idempotency_key=x[2]) for x in PLACES}
    assert len({run.id for run in made.values()}) == len(PLACES)
    for place, run in made.items():
        again = queue.enqueue(place[1], list(place), tenant_id=place[0], idempotency_key=place[2], queue="elsewhere")
        assert again == run
        assert (again.tenant_id, again.kind, again.idempotency_key) == place
        assert again.queue == "default"


def test_no_tenant_learns_of_anothers_run_by_its_key(queue):
    for pair in itertools.permutations(["t1", "t2", "t3"], 2):
        mine, yours = (queue.enqueue("k", tenant, tenant_id=tenant, idempotency_key="same") for tenant in pair)
        assert mine.input != yours.input
        assert mine.id != yours.id
