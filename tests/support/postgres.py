"""A PostgreSQL of a test's own: to be crashed, stopped and started again, on the same TCP port of the loopback."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from collections.abc import Iterator

from runqueue.devdb import DevDatabaseError, Server
from runqueue.testing.server import SPEED, new_home, programs

__all__ = ["SPEED", "OwnServer", "free_port", "new_home", "own_server", "programs"]


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OwnServer(Server):
    """`start()` and `stop(mode)`, and the ways in which a server goes down that are not stops."""

    def kill(self) -> None:
        """SIGKILL to the postmaster: no shutdown, no checkpoint."""
        pid = self.pid()
        assert pid is not None, "the server does not run"
        os.kill(pid, signal.SIGKILL)
        while self.pid() is not None:
            time.sleep(0.01)

    def crash(self) -> None:
        """As a power cut: every process of the server ends at once; `start()` then recovers from the log."""
        self.stop("immediate")

    def start(self) -> None:
        """Start; after a `kill` as soon as the last backend has noticed."""
        deadline = time.monotonic() + 10
        while True:
            try:
                return super().start()
            except DevDatabaseError as error:
                if "still in use" not in str(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start again."""
        self.stop(mode)
        self.start()


@contextlib.contextmanager
def own_server(**settings: str) -> Iterator[OwnServer]:
    """A running server, stopped and removed afterwards. `settings` go over `SPEED`."""
    home = new_home()
    server = OwnServer(programs(), home, port=free_port(), settings=SPEED | settings)
    try:
        server.start()
        yield server
    finally:
        server.stop("immediate")
        shutil.rmtree(home, ignore_errors=True)
