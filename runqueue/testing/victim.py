"""A worker process that is killed in its handler, as the variable RUNQUEUE_VICTIM says."""

from __future__ import annotations

import json
import os
import signal
import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

from sqlalchemy import Connection, create_engine, event

from runqueue.queue import RunQueue
from runqueue.worker import SyncRunContext, Worker


def main() -> None:
    """Work until the first run of the kind `victim`."""
    told = json.loads(os.environ["RUNQUEUE_VICTIM"])
    suite: Any = _module(told["module"], told["file"])
    for name in told["name"].split("."):
        suite = getattr(suite, name)
    queue: RunQueue = suite().make_queue(create_engine(told["url"], connect_args={"application_name": "runqueue"}))
    first, second = told["states"]

    @queue.handler("victim")
    def victim(run: SyncRunContext) -> None:
        if told["point"] != "handler":
            with run.transaction() as tx:
                tx.save_checkpoint(first)
        if told["point"] == "commit":
            with run.transaction() as tx:
                tx.save_checkpoint(second)
                event.listen(tx.connection, "commit", _die)
        _die()

    Worker(queue, concurrency=1).run()


def _die(connection: Connection | None = None) -> None:
    del connection
    os.kill(os.getpid(), signal.SIGKILL)


def _module(name: str, file: str) -> ModuleType:
    try:
        found = import_module(name)
        if getattr(found, "__file__", None) == file:
            return found
    except ImportError:
        pass  # a test module need not be importable by its name
    spec = spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
