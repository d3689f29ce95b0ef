"""What the worker's log tells of handlers."""

from __future__ import annotations

import logging
import threading

import pytest

from runqueue import RunContext, RunQueue, SyncRunContext, Worker


def _fails() -> None:
    raise ValueError("no good: password=hunter2")


def test_failed_attempt_is_logged_with_its_place_and_without_its_secrets(
    queue: RunQueue, caplog: pytest.LogCaptureFixture
) -> None:
    @queue.handler("bad")
    async def bad(run: RunContext) -> None:
        _fails()

    run = queue.enqueue("bad", tenant_id="acme", max_attempts=1)
    with caplog.at_level(logging.DEBUG, "runqueue"):
        assert Worker(queue).drain() == 1
    [line] = [x.getMessage() for x in caplog.records if "failed, attempt 1 of 1" in x.getMessage()]
    assert str(run.id) in line
    assert "ValueError: no good" in line
    assert "test_log.py" in line
    assert line.endswith("in _fails")
    assert any("raise ValueError" in x.getMessage() for x in caplog.records if x.levelno == logging.DEBUG)
    assert "hunter2" not in line


def test_handler_that_is_given_up_is_logged(queue: RunQueue, caplog: pytest.LogCaptureFixture) -> None:
    over = threading.Event()

    @queue.handler("deaf", timeout=0.1, cancel_grace=0.1)
    def deaf(run: SyncRunContext) -> None:
        over.wait(20)

    queue.enqueue("deaf", tenant_id="acme", max_attempts=1)
    with caplog.at_level(logging.WARNING, "runqueue"):
        assert Worker(queue).drain() == 1
    over.set()
    assert any("did not stop (timeout) and is given up; its thread" in x.getMessage() for x in caplog.records)
