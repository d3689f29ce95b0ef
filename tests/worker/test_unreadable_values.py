"""What is stored and cannot be read in Python ends its run, with a reason, before its handler starts."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from support.here import running

from runqueue import RunQueue, Worker

DEEP = "[" * 5000 + "]" * 5000
INPUT, BUDGET = (
    f"update runqueue.agent_runs set {x}_json = cast(:deep as jsonb) where id = :id" for x in ("input", "budget")
)
CHECKPOINT = "update runqueue.agent_run_checkpoints set state_json = cast(:deep as jsonb) where run_id = :id"


@pytest.mark.parametrize(
    ("what", "spoil"), [("input", INPUT), ("budget", BUDGET), ("checkpoint", CHECKPOINT)], ids=lambda x: x[:10]
)
def test_unreadable_value_ends_its_run_and_no_other(what: str, spoil: str, queue: RunQueue) -> None:
    started = []
    queue.handler("work")(lambda run: started.append(run.id))
    bad = queue.enqueue("work", tenant_id="acme")
    [claimed] = queue.claim("before")
    with queue.transaction(claimed.lease) as tx:
        tx.save_checkpoint({"turn": 1})
    queue.release(claimed.lease)
    with queue.engine.begin() as connection:
        assert connection.execute(text(spoil), {"deep": DEEP, "id": bad.id}).rowcount == 1
    others = [queue.enqueue("work", tenant_id="acme") for _ in range(3)]
    with running(Worker(queue)):
        dead = queue.wait(bad.id, 10)
        assert (dead.status, dead.error_code, dead.attempts) == ("dead", "undecodable", 1)
        assert what in str(dead.error_message)
        for run in others:
            assert queue.wait(run.id, 10).status == "done"
    assert bad.id not in started
