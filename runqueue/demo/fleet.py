"""The worker processes: started, killed, started again when they die, and gone at the end for certain."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from runqueue.errors import RunqueueError

PATIENCE = 10.0
"""Seconds that a worker has to end when asked; well above its drain deadline."""


class WorkerFailed(RunqueueError):
    """A worker ended by itself, which is no part of the story."""


class Fleet:
    """Workers by process id. Each leads a process group, so that what its tools started goes with it."""

    def __init__(self, environ: Mapping[str, str], log: Path, say: Callable[[str], None]) -> None:
        self._environ = {**os.environ, **environ}
        self._log = log
        self._say = say
        self._workers: dict[int, tuple[subprocess.Popen[bytes], str, int]] = {}

    @property
    def pids(self) -> list[int]:
        """The workers that are meant to run."""
        return list(self._workers)

    def start(self, queue: str, concurrency: int) -> int:
        """Start a worker process on a queue."""
        command = [sys.executable, "-m", "runqueue.demo.worker", queue, str(concurrency)]
        with self._log.open("ab") as log:
            process = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
            )
        self._workers[process.pid] = process, queue, concurrency
        return process.pid

    def kill(self, pid: int) -> None:
        """SIGKILL: the worker, and a tool that it may have running, stop where they are. It is not started again."""
        process, _, _ = self._workers.pop(pid)
        _kill(process)

    def supervise(self) -> None:
        """Start a worker in the place of each that was killed by its run. Raises WorkerFailed for any other end."""
        for pid, (process, queue, concurrency) in list(self._workers.items()):
            code = process.poll()
            if code is None:
                continue
            del self._workers[pid]
            _kill(process)
            if code != -signal.SIGKILL:
                raise WorkerFailed(f"worker {pid} ended by itself with exit code {code}")
            self._say(f"worker {pid} died of SIGKILL; worker {self.start(queue, concurrency)} replaces it")

    def stop(self) -> None:
        """Let the workers drain, and end those that do not."""
        for process, _, _ in self._workers.values():
            process.terminate()
        deadline = time.monotonic() + PATIENCE
        for process, _, _ in self._workers.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self._end()

    def __enter__(self) -> Fleet:
        """Nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End what still runs, at once."""
        self._end()

    def _end(self) -> None:
        while self._workers:
            _, (process, _, _) = self._workers.popitem()
            _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is gone already
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
