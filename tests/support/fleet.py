"""Worker processes: started, stopped, continued and killed by their pid, and gone when the test ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from support.tools import eventually

TESTS = Path(__file__).parents[1]
PATH = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
"""So that a copy of the library that is under test is the one that the processes use."""
FAST: dict[str, Any] = {
    "lease": 2, "heartbeat": 0.5, "reap_interval": 0.5, "poll_interval": 0.2, "retry_base": 0,
    "cancel_grace": 1, "abandon_after": 1, "drain_timeout": 2, "statement_timeout": 3, "connect_timeout": 2,
}  # fmt: skip
LEASE = 2.0


def slow(value: Any) -> Any:
    """A parameter for which a test runs with the slow tests only."""
    return pytest.param(value, marks=pytest.mark.slow)


both_policies = pytest.mark.parametrize("policy", ["reaper", slow("takeover")])
"""For tests that take seconds: the default policy always, the other one with the slow tests."""


class Process:
    """One worker process; its output goes to `log`."""

    def __init__(self, name: str, config: dict[str, Any], folder: Path, env: dict[str, str]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "support.apps.zoo"],
                cwd=TESTS,
                env=os.environ | {"ZOO": json.dumps(config), "PYTHONPATH": PATH} | env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self.popen.pid

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self._log.read_text(errors="replace")

    def ready(self, timeout: float = 20) -> Process:
        """Wait until it works."""
        eventually(lambda: " works on " in self.log or self.ended, timeout, what=f"the start of {self.name}")
        assert not self.ended, self.log
        return self

    @property
    def ended(self) -> bool:
        """Whether it is no more."""
        return self.popen.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.popen.send_signal(number)

    def freeze(self) -> None:
        """SIGSTOP, and wait until it has stopped."""
        self.send(signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T", 5, what="the stop")

    def thaw(self) -> None:
        """SIGCONT."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.send(signal.SIGKILL)
        self.popen.wait(10)

    def exit_code(self, timeout: float = 15) -> int:
        """Wait for the end; negative where a signal ended it."""
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end within {timeout:g} s:\n{self.log}") from None


class Fleet:
    """The worker processes of one test."""

    def __init__(self, url: str, folder: Path, claim: str = "reaper") -> None:
        self._url, self._folder, self.claim = url, folder, claim
        self._processes: list[Process] = []

    def start(
        self,
        kinds: Sequence[str] | None = None,
        *,
        url: str | None = None,
        concurrency: int = 4,
        surprise: str | None = None,
        log: str = "INFO",
        env: dict[str, str] | None = None,
        effects: str | None = None,
        **settings: Any,
    ) -> Process:
        """A process that knows these kinds of the zoo, by default all, and one of its surprises, by default none.

        `settings` go over `FAST`.
        """
        name = f"w{len(self._processes) + 1}"
        config = {
            "name": name,
            "url": url or self._url,
            "effects": effects or self._url,
            "claim": self.claim,
            "kinds": kinds,
            "concurrency": concurrency,
            "settings": FAST | settings,
            "surprise": surprise,
            "log": log,
        }
        process = Process(name, config, self._folder, env or {})
        self._processes.append(process)
        return process

    def end(self) -> None:
        """Kill what still runs."""
        for process in self._processes:
            if not process.ended:
                process.thaw()
                process.kill()
