"""A worker that is killed in the middle of a graph: another goes on there, and runs no finished node again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import func, select
from support.effects import Effects
from support.fleet import FAST, PATH, TESTS
from support.tools import eventually

from runqueue import RunQueue
from runqueue_plugins.langgraph import GraphSaver
from runqueue_plugins.langgraph.tables import GraphTables


@contextmanager
def worker(url: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process; killed at the end, where it still runs."""
    config = {"url": url, "settings": FAST}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.apps.graphs"],
            cwd=TESTS,
            env=os.environ | {"GRAPHS": json.dumps(config), "PYTHONPATH": PATH},
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.parametrize("kind", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_killed_graph_resumes_at_the_interrupted_step(
    kind: str, url: str, queue: RunQueue, fx: Effects, t: GraphTables, tmp_path: Path
) -> None:
    run = queue.enqueue(kind, {"topic": "tides"}, tenant_id="acme")

    def left_is_committed() -> bool:
        with queue.engine.connect() as connection:
            done = select(func.count()).where(t.writes.c.channel == "done")
            return fx.attempts(run.id, "right") == [1] and connection.execute(done).scalar_one() == 1 + 1

    with worker(url, tmp_path / "1.log") as one, worker(url, tmp_path / "2.log") as other:
        eventually(left_is_committed, 30, what="the writes of plan and left")
        holder = queue.get(run.id).locked_by
        assert holder
        first = one if f":{one.pid}:" in holder else other
        assert first.poll() is None
        first.kill()
        fx.open("right")
        done = queue.wait(run.id, 30)
    assert (done.status, done.attempts) == ("done", 2), [x.read_text() for x in tmp_path.glob("*.log")]
    assert {name: fx.attempts(run.id, name) for name in ("plan", "left", "right", "report")} == {
        "plan": [1], "left": [1], "right": [1, 2], "report": [2]
    }  # fmt: skip
    assert done.result == {"topic": "tides", "done": ["plan", "left", "right", "report"], "said": []}
    config = {"configurable": {"thread_id": str(run.id)}}
    history = list(GraphSaver(queue, tenant_id="acme").list(config))
    assert [found.metadata["step"] for found in history] == [3, 2, 1, 0, -1][-len(history) :]
    assert {found.metadata["run_id"] for found in history} == {str(run.id)}
