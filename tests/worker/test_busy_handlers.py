"""A handler that hogs its event loop, the interpreter or every thread keeps its lease."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, text
from support.effects import Effects
from support.fleet import LEASE, Fleet, slow

from runqueue import RunQueue

# the lease is 2 s; the handler holds on for more than two of them while another worker looks for work
HELD = 2.5 * LEASE


def _expired_for_a_while(engine: Engine) -> int:
    with engine.begin() as connection:
        return int(
            connection.execute(text("select count(*) from runqueue_audit.audit where old_until < at")).scalar_one()
        )


@pytest.mark.parametrize("kind", ["block", slow("spin")])
def test_handler_that_blocks_its_loop_keeps_its_lease(kind: str, fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    first = fleet.start().ready()
    run = plain.enqueue(kind, HELD, tenant_id="acme")
    fx.await_start(run.id)
    fleet.start().ready()
    done = plain.wait(run.id, 20)
    assert (done.status, done.attempts, done.result) == ("done", 1, first.name)
    assert fx.attempts(run.id) == [1]
    assert _expired_for_a_while(plain.engine) == 0


@pytest.mark.slow
def test_saturated_threads_keep_their_leases(fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    fleet.start(concurrency=3).ready()
    long = [plain.enqueue("sync_sleep", 1.5 * LEASE, tenant_id="acme") for _ in range(3)]
    for run in long:
        fx.await_start(run.id)
    fleet.start(["quick"]).ready()
    waiting = [plain.enqueue("sync_sleep", 0, tenant_id="acme") for _ in range(3)]
    for run in [*long, *waiting]:
        done = plain.wait(run.id, 20)
        assert (done.status, done.attempts) == ("done", 1)
        assert fx.attempts(run.id) == [1]
