"""Enqueue in a two-phase transaction: prepared, it is nobody's; it is everybody's at COMMIT PREPARED."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import Session
from support.postgres import own_server
from support.tools import autocommit

from runqueue import RunNotFound, RunQueue, Settings
from runqueue.schema import migrate
from runqueue.testing import audit


@pytest.fixture(scope="module")
def prepared_url() -> Iterator[str]:
    """A database whose server allows prepared transactions, which is not the default."""
    with own_server(max_prepared_transactions="5") as server:
        engine = create_engine(server.url())
        migrate.upgrade(engine)
        with engine.begin() as connection:
            audit.install(connection)
        engine.dispose()
        yield server.url()
        with autocommit(server.url()) as connection:
            audit.check(connection)


@pytest.fixture
def host(prepared_url: str) -> Iterator[Engine]:
    """The application's engine; every run of the test before is gone."""
    engine = create_engine(prepared_url)
    yield engine
    engine.dispose()


@pytest.fixture
def prepared(host: Engine, settings: Settings) -> RunQueue:
    """A queue that announces what it stores, as by default."""
    assert settings.notify
    return RunQueue(host, settings=settings)


def test_a_prepared_run_is_seen_at_its_commit(host: Engine, prepared: RunQueue) -> None:
    with host.connect() as connection:
        transaction = connection.begin_twophase()
        run = prepared.enqueue("k", 1, tenant_id="t", idempotency_key="a", connection=connection)
        transaction.prepare()
        with pytest.raises(RunNotFound):
            prepared.get(run.id)
        assert prepared.claim("hungry", limit=5) == []
        transaction.commit()
    assert prepared.get(run.id) == run
    [claimed] = prepared.claim("hungry", limit=5)
    assert claimed.run.id == run.id
    prepared.complete(claimed.lease)


def test_a_prepared_run_that_is_rolled_back_leaves_nothing_and_frees_its_key(host: Engine, prepared: RunQueue) -> None:
    with host.connect() as connection:
        transaction = connection.begin_twophase()
        gone = prepared.enqueue("k", 1, tenant_id="t", idempotency_key="b", connection=connection)
        transaction.prepare()
        transaction.rollback()
    with pytest.raises(RunNotFound):
        prepared.get(gone.id)
    run = prepared.enqueue("k", 2, tenant_id="t", idempotency_key="b")
    assert prepared.cancel(run.id).status == "cancelled"


def test_a_two_phase_session_commits_its_rows_runs_and_controls(host: Engine, prepared: RunQueue) -> None:
    asked, unasked = (prepared.enqueue("k", tenant_id="t") for _ in range(2))
    claimed = {x.run.id: x.lease for x in prepared.claim("w", limit=5)}
    prepared.pause("elsewhere")
    with Session(host, twophase=True) as session:
        session.execute(text("create table mine (x int)"))
        first = prepared.enqueue("k", tenant_id="t", connection=session)
        with session.begin_nested():
            second = prepared.enqueue("k", tenant_id="t", connection=session)
        prepared.cancel(asked.id, connection=session)
        prepared.retry(prepared.cancel(prepared.enqueue("k", tenant_id="t").id).id, connection=session)
        session.commit()
    assert prepared.get(asked.id).cancel_requested_at is not None
    prepared.settle_cancelled(claimed[asked.id])
    prepared.complete(claimed[unasked.id])
    due = [x.lease for x in prepared.claim("w", limit=5)]
    assert len(due) == 3
    assert {first.id, second.id} < {x.run_id for x in due}
    prepared.complete_many((x, None) for x in due)
