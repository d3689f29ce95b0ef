"""A plugin that fails where it decides something cannot keep a run from being settled, nor stop the worker."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, text
from support.fleet import slow
from support.here import running
from support.tools import eventually

from runqueue import RunContext, RunQueue, Settings, Worker, hookimpl


class Broken:
    """Raises in each hook that decides something about a failure."""

    def __init__(self, fault: Callable[[], Any]) -> None:
        self._fault = fault

    @hookimpl
    def runqueue_retry_delay(self) -> Any:
        return self._fault()

    @hookimpl
    def runqueue_redact(self) -> Any:
        return self._fault()


def _raise(error: type[BaseException]) -> Callable[[], Any]:
    def fault() -> Any:
        raise error("plugin")

    return fault


FAULTS: dict[str, Callable[[], Any]] = {
    "Exception": _raise(ValueError),
    "SystemExit": _raise(SystemExit),
    "CancelledError": _raise(asyncio.CancelledError),
    "KeyboardInterrupt": _raise(KeyboardInterrupt),
    "a text": lambda: "soon",
    "NaN": lambda: math.nan,
    "negative": lambda: -1,
    "beyond all time": lambda: 1e300,
    "a huge integer": lambda: 10**400,
}


@pytest.mark.parametrize(
    "fault", [name if name in ("Exception", "SystemExit", "beyond all time") else slow(name) for name in FAULTS]
)
def test_run_is_settled_whatever_a_plugin_does(fault: str, engine: Engine, settings: Settings) -> None:
    queue = RunQueue(engine, settings=settings, plugins=[Broken(FAULTS[fault])])

    @queue.handler("async")
    async def async_(run: RunContext) -> None:
        raise ValueError("S3cr3t")

    @queue.handler("sync")
    def sync(run: Any) -> None:
        raise ValueError("S3cr3t")

    queue.handler("innocent")(lambda run: "done")
    with running(Worker(queue)):
        for kind in ("async", "sync"):
            last = queue.enqueue(kind, tenant_id="acme", max_attempts=1)
            first = queue.enqueue(kind, tenant_id="acme", max_attempts=2)
            dead = queue.wait(last.id, 10)
            assert dead.status == "dead"
            assert "S3cr3t" not in f"{dead.error_code}{dead.error_message}"
            eventually(lambda run=first: queue.get(run.id).status == "pending", 10, what="the retry")
        assert queue.wait(queue.enqueue("innocent", tenant_id="acme").id, 10).status == "done"


@pytest.mark.audit(off=True)
@pytest.mark.parametrize("ends", ["done", "dead"])
def test_run_that_cannot_be_written_does_not_hold_up_the_others(ends: str, plain: RunQueue) -> None:
    """The application's own trigger refuses one run's end: the others are settled."""
    trigger = """
        create function refuse() returns trigger language plpgsql as
            $$ begin if new.kind = 'cursed' then raise 'refused'; end if; return new; end $$;
        create trigger refuse before update on runqueue.agent_runs for each row
            when (old.status = 'leased' and new.status <> 'leased') execute function refuse();
    """
    with plain.engine.begin() as connection:
        connection.execute(text(trigger))

    @plain.handler("cursed")
    def cursed(run: Any) -> None:
        if ends == "dead":
            raise ValueError("boom")

    plain.handler("innocent")(lambda run: "done")
    with running(Worker(plain)) as worker:
        run = plain.enqueue("cursed", tenant_id="acme", max_attempts=1)
        eventually(lambda: worker.stats.lease_lost, 10, what="the end of trying")
        for other in [plain.enqueue("innocent", tenant_id="acme") for _ in range(3)]:
            assert plain.wait(other.id, 10).status == "done"
        assert plain.get(run.id).status == "leased"
