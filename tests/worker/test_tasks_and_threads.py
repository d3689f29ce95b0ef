"""Background tasks are held on to; checkpoints go side by side; nothing of it depends on the garbage collector."""

from __future__ import annotations

import ast
import asyncio
import gc
import importlib.metadata
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from support.here import running
from support.tools import eventually

import runqueue
from runqueue import NewRun, RunContext, RunQueue, Worker

SOURCES = sorted(Path(runqueue.__file__).parent.rglob("*.py"))
STARTS = {"create_task", "ensure_future", "run_coroutine_threadsafe"}


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _dropped(source: str) -> list[int]:
    """Lines on which a task is started and its handle is thrown away."""
    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _name(node.value) in STARTS
    ]


def test_every_task_is_kept() -> None:
    assert _dropped("asyncio.create_task(f())\nx = asyncio.create_task(f())") == [1]
    assert {str(path): lines for path in SOURCES if (lines := _dropped(path.read_text()))} == {}


def test_hundred_runs_survive_the_garbage_collector(plain: RunQueue) -> None:
    @plain.handler("work")
    async def work(run: RunContext) -> None:
        for _ in range(3):
            await asyncio.sleep(0.01)
        await run.emit("step")

    over = threading.Event()

    def collect() -> None:
        while not over.is_set():
            gc.collect()
            over.wait(0.2)

    collector = threading.Thread(target=collect)
    collector.start()
    try:
        with running(Worker(plain, concurrency=20)) as worker:
            runs = plain.enqueue_many(NewRun(kind="work", tenant_id="acme") for _ in range(100))
            eventually(lambda: worker.stats.completed == 100, 30, what="the end of all")
            assert {(plain.get(run.id).status, plain.get(run.id).attempts) for run in runs} == {("done", 1)}
    finally:
        over.set()
        collector.join()


def test_checkpoints_overlap_and_an_error_in_one_leaves_the_others_alone(plain: RunQueue) -> None:
    barrier: list[asyncio.Barrier] = []

    async def spoil(run: RunContext) -> None:
        async with run.transaction() as tx:
            await tx.save_checkpoint({"n": "bad"})
            await tx.connection.execute(text("select 1/0"))

    @plain.handler("save")
    async def save(run: RunContext) -> str:
        if not barrier:
            barrier.append(asyncio.Barrier(50))
        async with run.transaction() as tx:
            await tx.save_checkpoint({"n": run.input})
            async with asyncio.timeout(20):
                await barrier[0].wait()  # all fifty are in a transaction now
        if run.input % 10 == 0:
            with pytest.raises(DBAPIError):
                await spoil(run)
        await run.emit("after")
        return str(run.checkpoint["n"])

    with running(Worker(plain, concurrency=50)):
        runs = [plain.enqueue("save", n, tenant_id="acme", max_attempts=1) for n in range(50)]
        for n, run in enumerate(runs):
            done = plain.wait(run.id, 30)
            assert (done.status, done.result) == ("done", str(n))
    with plain.engine.connect() as connection:
        query = "select count(*), count(distinct run_id) from runqueue.agent_run_checkpoints"
        assert tuple(connection.execute(text(query)).one()) == (50, 50)


def test_greenlet_is_required_where_sqlalchemy_does_not_bring_it() -> None:
    """SQLAlchemy 2.1 has it as an extra."""
    required = importlib.metadata.requires("runqueue") or []
    assert any(line.replace(" ", "").startswith("sqlalchemy[asyncio]") for line in required)


@pytest.mark.parametrize("without", [(), ("greenlet",)], ids=["all", "no greenlet"])
def test_import_works_or_names_what_is_missing(without: tuple[str, ...]) -> None:
    block = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    program = f"import sys; {block}import runqueue; print('greenlet' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    if without and result.returncode:
        assert "greenlet" in result.stderr.splitlines()[-1]
    else:
        assert result.returncode == 0, result.stderr


def test_nothing_in_the_library_asks_the_wall_clock() -> None:
    assert {
        str(path): calls
        for path in SOURCES
        if path.parent.name != "testing" and (calls := _wall_clock(path.read_text()))
    } == {}


def _wall_clock(source: str) -> list[str]:
    """Calls of the wall clock: `datetime.now()`, `time.time()` and their like."""
    asked = {"now", "utcnow", "today", "time", "time_ns"}
    owners = {"datetime", "date", "time"}
    found: list[Any] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in asked:
            owner = node.func.value
            if getattr(owner, "id", getattr(owner, "attr", "")) in owners:
                found.append(ast.unparse(node))
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [f"from time import {x.name}" for x in node.names if x.name in asked]
    return found


def test_the_wall_clock_would_be_found() -> None:
    assert _wall_clock("import time\nx = time.time() + 1") == ["time.time()"]
    assert _wall_clock("datetime.now(UTC)") == ["datetime.now(UTC)"]
    assert _wall_clock("from time import time") == ["from time import time"]
