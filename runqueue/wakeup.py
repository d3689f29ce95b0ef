"""Wake-ups by LISTEN: hints that make a worker look sooner. Whatever they miss, polling finds."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import socket
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from runqueue.deadline import Deadlines

log = logging.getLogger("runqueue.wakeup")

LONGEST_PAUSE = 10.0


class Listener:
    """A thread with one connection of its own, in autocommit, that passes on what it hears.

    It reconnects with growing pauses, proves a silent connection alive every `probe` seconds by asking which channels
    the session listens to, and tells `on_hint("")` after each connect: what was announced before was not heard.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        channel: str,
        on_hint: Callable[[str], None],
        *,
        probe: float,
        timeout: float,
        deadlines: Deadlines,
    ) -> None:
        self._connect = connect
        self._channel = channel
        self._on_hint = on_hint
        self._probe = probe
        self._timeout = timeout
        self._deadlines = deadlines
        self._stopping = threading.Event()
        self._connection: psycopg.Connection[Any] | None = None
        self._thread = threading.Thread(target=self._run, name="runqueue-listen", daemon=True)
        self.up = False
        """Whether the connection was there, and listening, when last looked at."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread, whatever it waits for."""
        self._stopping.set()
        connection = self._connection
        if connection is not None:
            with contextlib.suppress(psycopg.Error, OSError), socket.socket(fileno=os.dup(connection.fileno())) as end:
                end.shutdown(socket.SHUT_RDWR)
        self._thread.join(self._timeout)

    def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                with contextlib.closing(self._connect()) as connection:
                    self._connection = connection
                    self._listen(connection)
                    failures = 0
                    while not self._stopping.is_set():
                        self._hear(connection)
            except Exception as error:
                if not self._stopping.is_set() and (self.up or not failures):
                    log.warning("not listening, polling only until that is back: %s", type(error).__name__)
                failures += 1
            finally:
                self.up = False
                self._connection = None
            pause = min(LONGEST_PAUSE, 0.1 * 2.0 ** min(failures, 10))
            self._stopping.wait(pause * random.uniform(0.5, 1.0))

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.autocommit = True
        with self._deadlines.guard_socket(connection.fileno(), self._timeout):
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(self._channel)))
        self.up = True
        self._on_hint("")

    def _hear(self, connection: psycopg.Connection[Any]) -> None:
        for notification in connection.notifies(timeout=self._probe):
            self._on_hint(notification.payload)
        if self._stopping.is_set():
            return
        with self._deadlines.guard_socket(connection.fileno(), self._timeout):
            channels = connection.execute("select pg_listening_channels()").fetchall()
        if (self._channel,) not in channels:
            raise psycopg.OperationalError("the session does not listen any more")
