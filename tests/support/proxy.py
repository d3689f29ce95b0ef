"""A TCP proxy in front of PostgreSQL that fails on demand, as networks do.

It needs no privileges. It runs on an event loop in a thread of its own; each control has taken effect when it
returns. It speaks no TLS, and reads the PostgreSQL protocol only as far as to know when an answer is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from sqlalchemy.engine import make_url

T = TypeVar("T")
READY = b"Z\x00\x00\x00\x05"
"""The head of ReadyForQuery, the last message of every answer; the transaction's state, one byte, follows."""
COMMIT = b"COMMIT\x00"


class Proxy:
    """`with Proxy(url) as proxy:` connect to `proxy.url`, the same database by way of the proxy.

    `url` is a SQLAlchemy URL of a server on TCP or on a Unix socket. `fired` is set when an armed cut has happened.
    """

    def __init__(self, url: str) -> None:
        self._upstream = _address(url)
        self._links: set[_Link] = set()
        self._loop = asyncio.new_event_loop()
        self._to_server, self._to_client = asyncio.Event(), asyncio.Event()
        self._delay = 0.0
        self._armed: tuple[bytes, bool] | None = None
        self._listener = _bind(0)
        self.port: int = self._listener.getsockname()[1]
        self.url = (
            make_url(url)
            .set(host="127.0.0.1", port=self.port)
            .difference_update_query(["host", "port"])
            .render_as_string(hide_password=False)
        )
        self.fired = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        self.restore()
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._links)

    def cut(self) -> None:
        """Reset every connection. New ones are served."""
        self._do(self._cut())

    def refuse(self) -> None:
        """Refuse new connections. The open ones go on; `cut()` as well looks like a server that is down."""
        self._do(self._refuse())

    def blackhole(self, *, to_server: bool = True, to_client: bool = True) -> None:
        """Forward nothing, in one or both directions, and close nothing. New connections are taken, and hang.

        What was sent meanwhile is delivered at `restore()`, as after a real outage.
        """
        self._do(self._gates(not to_server, not to_client))

    def delay(self, seconds: float) -> None:
        """Deliver everything that much later, in each direction."""
        self._do(self._set_delay(seconds))

    def cut_after(self, marker: bytes) -> None:
        """Arm: the next bytes with `marker` reach the server, it answers, the client gets a reset for an answer."""
        self._do(self._arm(marker, True))

    def cut_after_commit(self) -> None:
        """Arm: the next COMMIT succeeds, and its client never hears of it."""
        self.cut_after(COMMIT)

    def cut_before(self, marker: bytes) -> None:
        """Arm: the next bytes with `marker` never reach the server, and the client gets a reset."""
        self._do(self._arm(marker, False))

    def restore(self) -> None:
        """Work as a network should."""
        self._do(self._restore())

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _restore(self) -> None:
        self._armed, self._delay = None, 0.0
        await self._gates(True, True)
        if not hasattr(self, "_accepting") or self._accepting.done():
            self._listener.close()
            self._listener = _bind(self.port)
            self._listener.listen(128)
            self._accepting = self._loop.create_task(self._accept(self._listener))

    async def _gates(self, to_server: bool, to_client: bool) -> None:
        for gate, is_open in ((self._to_server, to_server), (self._to_client, to_client)):
            if is_open:
                gate.set()
            else:
                gate.clear()

    async def _set_delay(self, seconds: float) -> None:
        self._delay = seconds

    async def _arm(self, marker: bytes, forward: bool) -> None:
        self.fired.clear()
        self._armed = (marker, forward)

    async def _refuse(self) -> None:
        self._accepting.cancel()
        await asyncio.wait([self._accepting])
        self._listener.close()
        self._listener = _bind(self.port)  # bound and not listening: refuses, and nobody else gets the port

    async def _cut(self) -> None:
        links = list(self._links)
        for link in links:
            link.task.cancel()
        if links:
            await asyncio.wait([link.task for link in links])

    async def _close(self) -> None:
        await self._refuse()
        self._listener.close()
        await self._cut()

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            client, _ = await self._loop.sock_accept(listener)
            client.setblocking(False)
            link = _Link(client)
            self._links.add(link)
            link.task = self._loop.create_task(self._serve(link))

    async def _serve(self, link: _Link) -> None:
        reset = True
        family, address = self._upstream
        with contextlib.closing(socket.socket(family)) as server, contextlib.closing(link.client):
            try:
                await self._to_server.wait()
                server.setblocking(False)
                await self._loop.sock_connect(server, address)
                async with asyncio.TaskGroup() as both:
                    both.create_task(self._ask(link, server))
                    both.create_task(self._answer(link, server))
                reset = False
            except* OSError:
                pass
            finally:
                self._links.discard(link)
                if reset:
                    for side in (link.client, server):
                        side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _ask(self, link: _Link, server: socket.socket) -> None:
        """Client to server."""
        tail = b""
        while data := await self._loop.sock_recv(link.client, 65536):
            await self._pass(self._to_server)
            if self._armed is not None and self._armed[0] in tail + data:
                forward, self._armed = self._armed[1], None
                if not forward:
                    self._break()
                link.swallows = True
            tail = data[-64:]
            await self._loop.sock_sendall(server, data)
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_WR)

    async def _answer(self, link: _Link, server: socket.socket) -> None:
        """Server to client."""
        swallowed = b""
        while data := await self._loop.sock_recv(server, 65536):
            await self._pass(self._to_client)
            if link.swallows:
                swallowed += data
                if swallowed[-6:-1] == READY:
                    self._break()
                continue
            await self._loop.sock_sendall(link.client, data)
        with contextlib.suppress(OSError):
            link.client.shutdown(socket.SHUT_WR)

    async def _pass(self, gate: asyncio.Event) -> None:
        if self._delay:
            await asyncio.sleep(self._delay)
        await gate.wait()

    def _break(self) -> None:
        self.fired.set()
        raise ConnectionResetError


class _Link:
    """One client's connection, and the task that serves it."""

    task: asyncio.Task[None]

    def __init__(self, client: socket.socket) -> None:
        self.client = client
        self.swallows = False


def _bind(port: int) -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", port))
    bound.setblocking(False)
    return bound


def _address(url: str) -> tuple[int, Any]:
    parsed = make_url(url)
    host = parsed.query.get("host", parsed.host or "127.0.0.1")
    port = int(str(parsed.query.get("port", parsed.port or 5432)))
    if str(host).startswith("/"):
        return socket.AF_UNIX, f"{host}/.s.PGSQL.{port}"
    return socket.AF_INET, (str(host), port)
