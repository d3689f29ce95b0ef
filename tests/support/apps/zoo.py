"""A worker process with one handler for each way to behave. Its configuration is JSON in the variable ZOO."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import time
from typing import Any

from runqueue import RunContext, RunQueue, Settings, Worker
from support.effects import Effects

CONFIG = json.loads(os.environ["ZOO"])
effects = Effects(CONFIG["effects"])
queue = RunQueue(CONFIG["url"], claim=CONFIG["claim"], settings=Settings(**CONFIG["settings"]))
me = CONFIG["name"]


def handler(kind: str, **options: Any) -> Any:
    """Register, if this process is to know the kind."""
    if CONFIG["kinds"] is None or kind in CONFIG["kinds"]:
        return queue.handler(kind, **options)
    return lambda function: function


@handler("quick")
async def quick(run: RunContext) -> str:
    effects.note(run, worker=me)
    return me


@handler("sync_quick")
def sync_quick(run: Any) -> str:
    effects.note(run, worker=me)
    return me


@handler("gate")
async def gate(run: RunContext) -> str:
    """Go on until the gate is open, for all or for this attempt, then write for the run."""
    effects.note(run, worker=me)
    while not (effects.is_open(run.input) or effects.is_open(f"{run.input} {run.attempt}")):  # noqa: ASYNC110 - the gate is in the database
        await asyncio.sleep(0.02)
    await run.emit("passed", me)
    effects.note(run, "passed", worker=me)
    return me


@handler("sync_gate")
def sync_gate(run: Any) -> str:
    effects.note(run, worker=me)
    while not effects.is_open(run.input) and not run.cancel_requested:
        time.sleep(0.02)
    run.raise_if_cancelled()
    return me


@handler("deaf")
def deaf(run: Any) -> str:
    """A thread that nothing can stop before the gate is open."""
    effects.note(run, worker=me)
    while not effects.is_open(run.input):
        time.sleep(0.02)
    return me


@handler("block")
async def block(run: RunContext) -> str:
    """Hold up the event loop, and everything else on it."""
    effects.note(run, worker=me)
    time.sleep(run.input)  # noqa: ASYNC251
    return me


@handler("spin")
async def spin(run: RunContext) -> str:
    """Hold up the event loop and the interpreter."""
    effects.note(run, worker=me)
    end, n = time.monotonic() + run.input, 0
    while time.monotonic() < end:
        n += 1
    return me


@handler("sync_sleep")
def sync_sleep(run: Any) -> str:
    effects.note(run, worker=me)
    time.sleep(run.input)
    return me


@handler("parent")
def parent(run: Any) -> None:
    """Wait for a process of its own, in the worker's group, that only a signal ends."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    effects.note(run, worker=me)
    if child.wait():
        raise RuntimeError(f"the child ended with {child.returncode}")


@handler("poison")
async def poison(run: RunContext) -> None:
    effects.note(run, worker=me)
    os.kill(os.getpid(), signal.SIGKILL)


@handler("clock")
async def clock(run: RunContext) -> float:
    """What this process believes the time is, after a while under a lease."""
    effects.note(run, worker=me)
    await asyncio.sleep(run.input)
    return time.time()


def main() -> int:
    logging.basicConfig(level=CONFIG["log"], stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    if CONFIG["surprise"]:
        SURPRISES[CONFIG["surprise"]]()
    Worker(queue, concurrency=CONFIG["concurrency"]).run()
    sys.stderr.write("ended cleanly\n")
    return 0


def _die_after_claim() -> None:
    """Be killed when the claim is committed and no handler has started."""
    from runqueue.worker.control import Control

    def start(self: Control, claimed: Any, sent: float) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    Control._start = start  # type: ignore[method-assign]


def _drain_after_claim() -> None:
    """Get SIGTERM when a claim is committed, and go on when the main thread has taken note of it."""
    from runqueue.worker.control import Control

    original = Control._start

    def start(self: Control, claimed: Any, sent: float) -> None:
        if self._stop_by is None:
            os.kill(os.getpid(), signal.SIGTERM)
            while self._stop_by is None:
                time.sleep(0.01)
        original(self, claimed, sent)

    Control._start = start  # type: ignore[method-assign]


def _die_after_sweep() -> None:
    """Be killed when the first batch of a sweep that found something is committed."""
    original = RunQueue.reap

    def reap(self: RunQueue, limit: int | None = None) -> Any:
        reaped = original(self, limit)
        if reaped.total:
            os.kill(os.getpid(), signal.SIGKILL)
        return reaped

    RunQueue.reap = reap  # type: ignore[method-assign]


SURPRISES = {
    "die after claim": _die_after_claim,
    "drain after claim": _drain_after_claim,
    "die after sweep": _die_after_sweep,
}


if __name__ == "__main__":
    sys.exit(main())
