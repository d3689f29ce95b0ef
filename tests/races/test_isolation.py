"""Engines and roles with another isolation level than the default."""

from __future__ import annotations

import pytest
from races.forced import background, race, result, uncommitted, wait_blocked
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from runqueue import NewRun, RunQueue

RUNS, THREADS = 240, 8


@pytest.fixture(params=["REPEATABLE READ", "SERIALIZABLE", "AUTOCOMMIT", "role", "connection"])
def odd(request, engine):
    """An engine whose statements would run at another level, were it not for the library."""
    if request.param == "role":
        name = f"runqueue_{engine.url.database}"
        with engine.begin() as connection:
            connection.execute(text(f'create role "{name}" superuser login'))
            connection.execute(text(f"alter role \"{name}\" set default_transaction_isolation = 'serializable'"))
        made = create_engine(engine.url.set(username=name), pool_size=THREADS)
    elif request.param == "connection":
        options = r"-cdefault_transaction_isolation=repeatable\ read"
        made = create_engine(engine.url, pool_size=THREADS, connect_args={"options": options})
    else:
        made = create_engine(engine.url, pool_size=THREADS, isolation_level=request.param)
    yield made
    made.dispose()
    if request.param == "role":
        with engine.begin() as connection:
            connection.execute(text(f'drop role "{name}"'))


def test_eight_threads_drain_all_runs_once(odd, policy, settings, facts):
    queue = RunQueue(odd, claim=policy, settings=settings)
    queue.enqueue_many(NewRun(kind="k", tenant_id=f"t{n % 5}", input=n) for n in range(RUNS))

    def drain(n):
        done = []
        while batch := queue.claim(f"w{n}", limit=5):
            queue.heartbeat([x.lease for x in batch])
            for claimed in batch[:2]:
                with queue.transaction(claimed.lease) as tx:
                    tx.emit("step")
            queue.reap()
            queue.complete_many((x.lease, None) for x in batch)
            done += [x.run.id for x in batch]
        return done

    answers = race(odd, THREADS, drain)
    assert not [x for x in answers if isinstance(x, BaseException)]
    while rest := drain(99):  # what was locked when a thread looked last
        answers.append(rest)
    taken = [run_id for answer in answers for run_id in answer]
    assert len(taken) == len(set(taken)) == RUNS
    assert facts.sql("select status, attempts, count(*) from runqueue.agent_runs group by 1, 2") == [("done", 1, RUNS)]


@pytest.mark.slow
def test_one_key_is_one_run_at_any_level(odd, policy, settings, facts):
    """Above READ COMMITTED who came second could neither see the first's run nor store its own."""
    queue = RunQueue(odd, claim=policy, settings=settings)
    for key in range(20):
        answers = race(odd, THREADS, lambda n, key=key: queue.enqueue("k", tenant_id="t", idempotency_key=f"{key}").id)
        assert len(set(answers)) == 1, answers
    assert facts.sql("select count(*) from runqueue.agent_runs") == [(20,)]


def test_a_claim_skips_what_another_took_after_it_began(odd, policy, settings, engine, gate, queue):
    """Above READ COMMITTED this claim would fail with a serialization error."""
    run = queue.enqueue("k", tenant_id="t")
    options = odd.dialect.create_connect_args(odd.url)[1].get("options", "")
    slow = create_engine(
        odd.url, isolation_level=odd.dialect._on_connect_isolation_level,
        connect_args={"options": f"-csearch_path=traps,pg_catalog {options}"},
    )  # fmt: skip
    late = RunQueue(slow, claim=policy, settings=settings)
    for one in (queue, late):  # the first claim of an install states its rules, and others would wait for it
        assert one.claim("w", kinds=["none"]) == []
    with gate.shut():
        claiming = background(late.claim, "late")
        wait_blocked(engine)
        [first] = queue.claim("early")
    assert result(claiming) == []
    assert first.run.id == run.id
    slow.dispose()


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_serialization_failure_in_the_hosts_transaction_is_the_hosts(engine, queue, level):
    host = create_engine(engine.url, isolation_level=level)
    with host.connect() as mine:
        mine.begin()
        mine.execute(text("select 1 from runqueue.agent_run_keys")).all()  # the snapshot
        queue.enqueue("k", tenant_id="t", idempotency_key="x")
        with pytest.raises(OperationalError) as caught:
            queue.enqueue("k", tenant_id="t", idempotency_key="x", connection=mine)
        assert caught.value.orig.sqlstate == "40001"
    host.dispose()
    assert len(queue.list().runs) == 1


def test_a_deadlock_in_the_librarys_own_transaction_is_tried_again(queue, engine):
    a, b = sorted((queue.enqueue("k", tenant_id="t").id for _ in range(2)), key=str)
    with uncommitted(engine) as host:
        queue.cancel(b, connection=host)
        leases = [x.lease for x in queue.claim("w", limit=5)]
        assert [x.run_id for x in leases] == [a]
        waiting = background(queue.cancel, b)
        wait_blocked(engine)
        queue.cancel(a, connection=host)
        host.commit()
    assert result(waiting).status == "cancelled"
