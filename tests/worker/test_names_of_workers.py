"""A worker is known by another name after each start, although a restarted container has the same host and pid."""

from __future__ import annotations

import socket

from support.here import running
from support.tools import eventually

from runqueue import RunQueue, Worker
from runqueue.worker import SyncRunContext


def test_each_start_has_a_name_of_its_own(plain: RunQueue, monkeypatch) -> None:
    monkeypatch.setattr("os.getpid", lambda: 1)
    monkeypatch.setattr(socket, "gethostname", lambda: "pod-0")
    names: list[str | None] = []

    @plain.handler("work")
    def work(run: SyncRunContext) -> None:
        names.append(plain.get(run.id).locked_by)

    worker = Worker(plain)
    for start in (1, 2):
        with running(worker):
            plain.enqueue("work", tenant_id="acme")
            eventually(lambda start=start: len(names) == start, what="the run")
            assert names[-1] == worker.name
    assert len(set(names)) == 2
    assert all(name is not None and name.startswith("pod-0:1:") for name in names)
