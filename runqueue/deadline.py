"""A client-side deadline for a database call.

Server timeouts, keepalives and `tcp_user_timeout` do not help a client whose packets vanish behind a proxy. Shutting
the socket down from another thread does: the waiting call, sync or async, fails at once as a lost connection.
"""

from __future__ import annotations

import heapq
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from sqlalchemy import Connection

IDLE = 1.0
"""How long the timer thread stays without a call, in seconds."""


class Deadlines:
    """One timer thread for all calls of a queue; it starts with a call, and ends when there were none for a while."""

    def __init__(self) -> None:
        self._ids = itertools.count()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._wake = threading.Condition()
        self._calls: dict[int, int] = {}
        self._due: list[tuple[float, int]] = []
        self._thread: threading.Thread | None = None

    def guard(self, connection: Connection, seconds: float) -> AbstractContextManager[None]:
        """`guard_socket` for the socket of a SQLAlchemy connection."""
        driver = connection.connection.driver_connection
        return self.guard_socket(driver.pgconn.socket, seconds)  # type: ignore[union-attr]  # psycopg's, sync or async

    @contextmanager
    def guard_socket(self, fileno: int, seconds: float) -> Iterator[None]:
        """Shut the socket down if the block is not left within `seconds`."""
        call = self._add(
            os.dup(fileno), time.monotonic() + seconds
        )  # a duplicate cannot be closed and reused meanwhile
        try:
            yield
        except BaseException as error:
            if call not in self._calls:
                error.add_note(f"runqueue cut the connection: no answer within {seconds:g} s")
            raise
        finally:
            self._remove(call)

    def _add(self, fileno: int, due: float) -> int:
        if self._pid != os.getpid():
            # in a forked child: the calls are the parent's, and to cut their sockets here would cut them there
            self._begin()
        call = next(self._ids)
        with self._wake:
            self._calls[call] = fileno
            heapq.heappush(self._due, (due, call))
            if self._thread is None:
                self._start()
            elif self._due[0][1] == call:
                self._wake.notify()
        return call

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="runqueue-deadlines", daemon=True)
        self._thread.start()

    def _remove(self, call: int) -> None:
        with self._wake:
            fileno = self._calls.pop(call, None)
        if fileno is not None:
            os.close(fileno)

    def _run(self) -> None:
        with self._wake:
            while True:
                while self._due and self._due[0][1] not in self._calls:
                    heapq.heappop(self._due)
                wait = self._due[0][0] - time.monotonic() if self._due else IDLE
                if wait <= 0:
                    _, call = heapq.heappop(self._due)
                    _cut(self._calls.pop(call))
                elif not self._wake.wait(wait) and not self._due:
                    self._thread = None
                    return


def _cut(fileno: int) -> None:
    with socket.socket(fileno=fileno) as end:
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it was closed already, which is what we wanted
