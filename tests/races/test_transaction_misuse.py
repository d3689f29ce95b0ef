"""A fenced transaction is ended by its block alone: all of it is committed under the fence, or nothing."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from runqueue import Lease, LeaseLost, RunQueue
from runqueue.errors import RunqueueError


@pytest.fixture
def lease(queue: RunQueue, engine: Engine) -> Lease:
    with engine.begin() as connection:
        connection.execute(text("create table if not exists public.mine (v int primary key)"))
    queue.enqueue("k", tenant_id="t")
    return queue.claim("w", lease=3600)[0].lease


def nothing_was_written(queue: RunQueue, engine: Engine, lease: Lease) -> bool:
    with engine.connect() as connection:
        mine = connection.execute(text("select count(*) from public.mine")).scalar_one()
        saved = connection.execute(text("select count(*) from runqueue.agent_run_checkpoints")).scalar_one()
    return not mine and not saved and not queue.events(lease.run_id)


def own_commit(tx):
    tx.connection.execute(text("insert into public.mine values (1)"))
    tx.connection.commit()


def own_commit_of_the_root(tx):
    tx.connection.execute(text("insert into public.mine values (1)"))
    tx.connection.get_transaction().commit()


def own_commit_that_is_caught(tx):
    tx.connection.execute(text("insert into public.mine values (1)"))
    try:
        tx.connection.commit()
    except RunqueueError:
        tx.emit("message")


def own_rollback(tx):
    tx.connection.execute(text("insert into public.mine values (1)"))
    tx.connection.rollback()
    tx.emit("message")
    tx.save_checkpoint(1)


def rollback_of_a_session(tx):
    tx.emit("message")
    tx.save_checkpoint(1)
    with Session(bind=tx.connection) as session:
        session.execute(text("insert into public.mine values (1)"))
        try:
            session.execute(text("insert into public.mine values (1)"))
        except IntegrityError:
            session.rollback()


@pytest.mark.parametrize(
    "misuse", [own_commit, own_commit_of_the_root, own_commit_that_is_caught, own_rollback, rollback_of_a_session]
)
def test_a_transaction_ended_inside_writes_nothing(queue: RunQueue, engine: Engine, lease: Lease, misuse):
    with pytest.raises(RunqueueError, match="end"), queue.transaction(lease) as tx:
        misuse(tx)
    assert nothing_was_written(queue, engine, lease)


async def test_nor_does_an_async_one(queue: RunQueue, aqueue, engine: Engine, lease: Lease):
    async def early() -> None:
        async with aqueue.transaction(lease) as tx:
            await tx.connection.execute(text("insert into public.mine values (1)"))
            await tx.connection.commit()

    with pytest.raises(RunqueueError, match="end"):
        await early()
    assert nothing_was_written(queue, engine, lease)


def test_a_session_inside_commits_with_the_block(queue: RunQueue, engine: Engine, lease: Lease):
    with queue.transaction(lease) as tx, Session(bind=tx.connection) as session:
        session.execute(text("insert into public.mine values (1)"))
        session.commit()
        tx.emit("message")
    assert not nothing_was_written(queue, engine, lease)
    assert len(queue.events(lease.run_id)) == 1


def test_what_comes_after_the_end_is_refused(queue: RunQueue, lease: Lease):
    with queue.transaction(lease) as tx:
        pass
    with pytest.raises(RunqueueError, match="ended"):
        tx.emit("message")
    with pytest.raises(RunqueueError, match="ended"):
        tx.save_checkpoint(1)


def test_a_lost_lease_of_another_run_costs_the_handler_nothing(queue: RunQueue, lease: Lease):
    from runqueue import Worker

    queue.release(lease, delay=3600)

    @queue.handler("parent")
    def parent(run):
        try:
            with run.transaction() as tx:
                tx.emit("message")
                queue.complete(lease)
        except LeaseLost:
            run.emit("still here")
        return "done"

    run = queue.enqueue("parent", tenant_id="t")
    Worker(queue).drain()
    assert queue.get(run.id).status == "done"
    assert [x.type for x in queue.events(run.id)] == ["still here"]
