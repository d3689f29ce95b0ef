"""A handler for which the process has no thread left costs its run nothing, and the other runs nothing."""

from __future__ import annotations

import threading

import pytest

from runqueue import NewRun, RunQueue, Worker


def test_a_run_without_a_thread_is_given_back(plain: RunQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    plain.handler("work")(lambda run: "done")
    runs = plain.enqueue_many([NewRun(kind="work", tenant_id="acme") for _ in range(3)])
    start, refused = threading.Thread.start, []

    def start_all_but_one(self: threading.Thread) -> None:
        if self.name.startswith("runqueue-run-") and not refused:
            refused.append(self.name)
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_all_but_one)
    worker = Worker(plain)
    worker.drain()
    assert worker.stats.completed == 2
    (back,) = (x for x in [plain.get(run.id) for run in runs] if x.status != "done")
    assert (back.status, back.attempts) == ("pending", 0)
