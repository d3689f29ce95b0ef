"""One run that another transaction keeps locked delays its own settlement, and nothing else in the worker."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
from sqlalchemy import Engine, text
from support.here import running
from support.tools import autocommit, eventually

from runqueue import Discard, NewRun, RunQueue, Settings, Snooze, Worker


def returns(run: object) -> str:
    return "done"


def fails(run: object) -> None:
    raise Discard("no use")


def snoozes(run: object) -> None:
    raise Snooze(3600)


@pytest.mark.parametrize(
    ("handler", "ends"), [(returns, "done"), (fails, "dead"), (snoozes, "pending")], ids=["done", "dead", "released"]
)
def test_a_locked_run_holds_up_no_other(plain: RunQueue, engine: Engine, handler: Callable[..., object], ends: str):
    go = threading.Event()

    @plain.handler("work")
    def work(run: object) -> object:
        go.wait(30)
        return handler(run)

    locked, *others = plain.enqueue_many([NewRun(kind="work", tenant_id="acme") for _ in range(4)])
    with running(Worker(plain)) as worker:
        eventually(lambda: worker.stats.claimed == 4, what="the claim of all")
        with engine.begin() as connection:  # the application's own transaction, which goes on for a while
            connection.execute(text("select from runqueue.agent_runs where id = :id for update"), {"id": locked.id})
            go.set()
            eventually(lambda: {plain.get(x.id).status for x in others} == {ends}, what="the end of the others")
            late = plain.enqueue("work", tenant_id="acme")
            eventually(lambda: plain.get(late.id).status == ends, what="the end of a new one")
            assert plain.get(locked.id).status == "leased"
        eventually(lambda: plain.get(locked.id).status == ends, what="the end of the locked one")
        assert worker.stats.database_errors == worker.stats.lease_lost == 0


def test_a_sweep_that_fails_stops_no_claims(plain: RunQueue, url: str) -> None:
    plain.handler("work")(returns)
    with autocommit(url) as connection:
        connection.exec_driver_sql(
            "create function public.refuse() returns trigger language plpgsql as $$ begin "
            "raise exception 'out of order' using errcode = '57014'; end $$"
        )
        connection.exec_driver_sql(
            "create trigger refuse before update on runqueue.agent_runs for each row "
            "when (old.status = 'leased' and new.status = 'pending') execute function public.refuse()"
        )
    lost = plain.enqueue("work", tenant_id="acme", queue="other")
    (claimed,) = plain.claim("gone", queues=["other"], lease=0.001)
    with running(Worker(plain)) as worker:
        eventually(lambda: worker.stats.database_errors >= 2, what="sweeps that failed")
        run = plain.enqueue("work", tenant_id="acme")
        eventually(lambda: plain.get(run.id).status == "done", what="the end of a run")
    with autocommit(url) as connection:
        connection.exec_driver_sql("drop function public.refuse() cascade")
    assert claimed.run.id == lost.id
    assert plain.reap().pending == 1


@pytest.mark.slow
def test_a_worker_started_again_renews_nothing_that_it_gave_up(engine: Engine, settings: Settings, url: str) -> None:
    plain = RunQueue(engine, settings=replace(settings, statement_timeout=1, abandon_after=0.5))
    started = threading.Event()

    @plain.handler("work")
    def work(run: object) -> None:
        started.set()

    with autocommit(url) as connection:
        connection.exec_driver_sql(
            "create function public.refuse() returns trigger language plpgsql as $$ begin "
            "raise exception 'out of order' using errcode = '57014'; end $$"
        )
        connection.exec_driver_sql(
            "create trigger refuse before update on runqueue.agent_runs for each row "
            "when (new.status = 'done') execute function public.refuse()"
        )
        run = plain.enqueue("work", tenant_id="acme")
        worker = Worker(plain)
        with running(worker):
            started.wait(10)
            worker.stop(0)
        assert plain.get(run.id).status == "leased"
        connection.exec_driver_sql("drop function public.refuse() cascade")
    with running(worker):
        assert plain.wait(run.id, 20).attempts == 2
