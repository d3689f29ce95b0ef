"""A plugin that hangs where it decides something holds up the run it was asked about, and no lease."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, text
from support.effects import Effects
from support.here import running
from support.tools import eventually

from runqueue import RunContext, RunQueue, Settings, Worker, hookimpl

RENEWALS = "select count(*) from runqueue_audit.audit where run_id = :id and old_status = 'leased' and n > :since"


class Hanging:
    """Hangs in one hook, once, until it is let go; otherwise it leaves the decision to others."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.asked, self.go = threading.Event(), threading.Event()

    def _hang(self, where: str) -> None:
        if where == self._where and not self.asked.is_set():
            self.asked.set()
            assert self.go.wait(20)

    @hookimpl
    def runqueue_retry_delay(self) -> None:
        self._hang("delay")

    @hookimpl
    def runqueue_redact(self) -> None:
        self._hang("redact")


@pytest.mark.parametrize("how", ["async", "sync"])
@pytest.mark.parametrize("where", ["delay", "redact"])
def test_hanging_decision_stops_no_heartbeat(
    where: str, how: str, plain: RunQueue, engine: Engine, settings: Settings, fx: Effects
) -> None:
    plugin = Hanging(where)
    queue = RunQueue(engine, plugins=[plugin], settings=replace(settings, lease=1, heartbeat=0.2))
    over = threading.Event()

    @queue.handler("sync")
    def fails(run: Any) -> None:
        raise ValueError("boom")

    @queue.handler("async")
    async def fails_too(run: RunContext) -> None:
        raise ValueError("boom")

    @queue.handler("innocent")
    def innocent(run: Any) -> str:
        fx.note(run)
        over.wait(20)
        return "done"

    def renewals(run_id: object, since: int) -> int:
        with engine.connect() as connection:
            return int(connection.execute(text(RENEWALS), {"id": run_id, "since": since}).scalar_one())

    with running(Worker(queue, concurrency=4)) as worker:
        other = queue.enqueue("innocent", tenant_id="acme")
        fx.await_start(other.id)
        failing = queue.enqueue(how, tenant_id="acme", max_attempts=2)
        assert plugin.asked.wait(10)
        with engine.connect() as connection:
            since = connection.execute(text("select max(n) from runqueue_audit.audit")).scalar_one()
        try:
            eventually(lambda: renewals(other.id, since) >= 8, 10, what="heartbeats for longer than a lease")
            assert plain.reap().total == 0
            assert plain.get(other.id).fencing_token == 1
        finally:
            plugin.go.set()
        assert queue.wait(failing.id, 10).status == "dead"
        over.set()
        done = queue.wait(other.id, 10)
        assert (done.status, done.attempts) == ("done", 1)
        assert worker.stats.lease_lost == 0
