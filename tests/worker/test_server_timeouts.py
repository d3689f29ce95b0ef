"""A session that the server ends for its own reasons takes no run with it, and hides no error of a handler."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from support.here import running
from support.tools import autocommit, eventually

from runqueue import RunContext, RunQueue, Settings, Worker


def _configure(url: str, name: str, value: str) -> None:
    with autocommit(url) as connection:
        known = connection.execute(text("select count(*) from pg_settings where name = :name"), {"name": name})
        if not known.scalar_one():
            pytest.skip(f"this PostgreSQL has no {name}")
        database = connection.execute(text("select quote_ident(current_database())")).scalar_one()
        connection.exec_driver_sql(f"alter database {database} set {name} = '{value}'")


@pytest.fixture
def host(url: str) -> Iterator[Engine]:
    """An engine whose sessions begin after the configuration."""
    engine = create_engine(url, connect_args={"application_name": "runqueue host"})
    yield engine
    engine.dispose()


@pytest.mark.parametrize("setting", ["idle_in_transaction_session_timeout", "transaction_timeout"])
@pytest.mark.parametrize("kind", ["own session", "fenced"])
def test_original_error_is_kept_when_the_session_was_killed(
    kind: str, setting: str, url: str, host: Engine, settings: Settings
) -> None:
    _configure(url, setting, "200ms")
    queue = RunQueue(host, settings=Settings(**{**vars(settings), "lease": 1, "heartbeat": 0.2}))

    @queue.handler("own session")
    def own_session(run: Any) -> None:
        with host.begin() as connection:
            connection.execute(text("select 1"))
            time.sleep(0.6)
            raise ValueError("the original error")

    @queue.handler("fenced")
    def fenced(run: Any) -> None:
        with run.transaction() as tx:
            tx.connection.execute(text("select 1"))
            time.sleep(1.5)
            raise ValueError("the original error")

    with running(Worker(queue)):
        dead = queue.wait(queue.enqueue(kind, tenant_id="acme", max_attempts=1).id, 10)
    assert dead.status == "dead"
    assert "the original error" in str(dead.error_message)
    if kind == "fenced":  # of the handler's own session, its own context manager says something else first
        assert dead.error_code == "ValueError"


def test_statement_timeout_of_a_handler_is_the_error_of_its_run(url: str, host: Engine, settings: Settings) -> None:
    _configure(url, "statement_timeout", "200ms")
    queue = RunQueue(host, settings=settings)

    @queue.handler("slow")
    def slow(run: Any) -> None:
        with run.transaction() as tx:
            tx.connection.execute(text("select pg_sleep(5)"))

    with running(Worker(queue)):
        dead = queue.wait(queue.enqueue("slow", tenant_id="acme", max_attempts=1).id, 10)
    assert dead.status == "dead"
    assert "57014" in str(dead.error_message)


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_claim_that_is_timed_out_is_tried_later(setting: str, url: str, host: Engine, settings: Settings) -> None:
    _configure(url, setting, "150ms")
    queue = RunQueue(host, settings=settings)
    queue.handler("work")(lambda run: "done")
    with running(Worker(queue)) as worker:
        run = queue.enqueue("work", tenant_id="acme", delay=0.3)
        with host.begin() as connection:
            connection.execute(text("lock table runqueue.agent_runs in access exclusive mode"))
            eventually(lambda: worker.stats.database_errors >= 2, 10, what="claims that were timed out")
        done = queue.wait(run.id, 10)
    assert (done.status, done.attempts) == ("done", 1)
    assert not queue.events(run.id)


def test_no_transaction_is_open_while_handlers_run(url: str, host: Engine, settings: Settings) -> None:
    queue = RunQueue(host, settings=settings)
    go = threading.Event()

    @queue.handler("async")
    async def async_(run: RunContext) -> None:
        await run.wait_cancelled()

    @queue.handler("sync")
    def sync(run: Any) -> None:
        run.emit("started")
        go.wait(10)

    open_ = text(
        "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
        "and backend_type = 'client backend' and state like 'idle in transaction%'"
    )
    with running(Worker(queue)) as worker, autocommit(url) as connection:
        runs = [queue.enqueue(kind, tenant_id="acme") for kind in ("async", "sync")]
        eventually(lambda: worker.stats.running == 2 and queue.events(runs[1].id), 10, what="two handlers")
        end, seen = time.monotonic() + 1.5, []
        while time.monotonic() < end:
            seen.append(connection.execute(open_).scalar_one())
        assert len(seen) > 50
        # a statement outside a transaction is never idle in one; our own few statements in BEGIN and COMMIT may be met
        assert sum(map(bool, seen)) <= len(seen) / 20
        go.set()
        queue.cancel(runs[0].id)
        for run in runs:
            queue.wait(run.id, 10)
