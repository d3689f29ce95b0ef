"""A worker inside the test's own process, on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from runqueue import Worker


@contextmanager
def running(worker: Worker, *, drain: float = 0.0) -> Iterator[Worker]:
    """Let the worker work while the block lasts; then stop it, with `drain` seconds for what still runs."""
    started = threading.Event()
    failed: list[BaseException] = []

    async def main() -> None:
        async with worker:
            started.set()
            await worker.serve()

    def work() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            failed.append(error)
        finally:
            started.set()

    thread = threading.Thread(target=work, name="worker-here", daemon=True)
    thread.start()
    try:
        assert started.wait(20), "the worker did not start"
        if failed:
            raise failed[0]
        yield worker
    finally:
        worker.stop(timeout=drain)
        thread.join(30)
        assert not thread.is_alive(), "the worker did not stop"
    if failed:
        raise failed[0]
