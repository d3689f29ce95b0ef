"""A PostgreSQL server as a process: made, started, stopped for certain. `runqueue.devdb` is the way to use it."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from runqueue.errors import RunqueueError

if TYPE_CHECKING:
    from collections.abc import Mapping

UNPRIVILEGED = ("postgres", "embedded_postgres", "nobody")
SOCKET_PATH_LIMIT = 80
START_TIMEOUT, STOP_TIMEOUT, SIGNAL_TIMEOUT = 60, 20, 5


class DevDatabaseError(RunqueueError):
    """There is no PostgreSQL to start, or it does not start or stop."""


class Server:
    """One PostgreSQL with its data below `home`. It outlives the process that starts it: somebody must stop it.

    As root it runs as another user, since PostgreSQL refuses root; `home` must be reachable for that user.
    """

    def __init__(
        self, bin_dir: Path, home: Path, *, port: int | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        """`port`: listen on 127.0.0.1 as well."""
        self.bin_dir = bin_dir
        self.home = home
        self.port = port
        self.settings = dict(settings or {})
        self.data = home / "pgdata"
        self.log = self.data / "server.log"

    def start(self) -> None:
        """Start the server, unless it runs, and wait until it takes connections. The first start makes the data."""
        if self.pid() is not None:
            return
        identity = _identity(self.data)
        if identity:
            self.home.chmod(self.home.stat().st_mode | 0o111)
            self.bin_dir = _reachable(self.bin_dir, self.home, identity)
        if self.data.exists():
            self._require_version(identity)
        else:
            self._create(identity)
        # What a crash leaves names a process that is gone, or by now another one, or a zombie.
        for stale in (self.data / "postmaster.pid", *self.data.glob(".s.PGSQL.*")):
            stale.unlink(missing_ok=True)
        sockets = self.data
        if "," in str(sockets) or len(os.fsencode(sockets)) > SOCKET_PATH_LIMIT:  # neither can be said in a URL
            sockets = _directory(Path(tempfile.mkdtemp(prefix="runqueue-socket-")), identity)
        options = self.settings | {
            "listen_addresses": "" if self.port is None else "127.0.0.1",
            "port": str(self.port or 5432),
            "unix_socket_directories": f'"{sockets}"',
        }
        words = " ".join(f"-c {shlex.quote(f'{name}={value}')}" for name, value in options.items())
        try:
            self._run(identity, "pg_ctl", "-w", "-t", str(START_TIMEOUT), "-l", self.log, "-o", words, "start")
        except BaseException:
            self.stop("immediate")
            raise

    def stop(self, mode: str = "fast") -> None:
        """Stop the server, and see to it that its process is gone: with signals where it does not go by itself."""
        pid, sockets = self.pid(), self._sockets()
        if pid is None:
            return
        with contextlib.suppress(DevDatabaseError):
            self._run(_identity(self.data), "pg_ctl", "-w", "-t", str(STOP_TIMEOUT), "-m", mode, "stop")
        for harder in (signal.SIGQUIT, signal.SIGKILL, None):
            deadline = time.monotonic() + SIGNAL_TIMEOUT
            while self._alive(pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            if not self._alive(pid):
                break
            if harder is None:
                raise DevDatabaseError(f"the PostgreSQL server does not end: process {pid}, data in {self.data}")
            os.kill(pid, harder)
        if sockets is not None and sockets != self.data:
            shutil.rmtree(sockets, ignore_errors=True)

    def pid(self) -> int | None:
        """The server's process, or None when it does not run."""
        lines = self._pid_file()
        return int(lines[0]) if lines and self._alive(int(lines[0])) else None

    def url(self, database: str = "postgres") -> str:
        """The SQLAlchemy URL of a database of the running server."""
        lines = self._pid_file()
        if len(lines) < 5:
            raise DevDatabaseError(f"no PostgreSQL runs in {self.data}")
        if self.port is not None:
            return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"
        return f"postgresql+psycopg://postgres@/{database}?host={quote(lines[4], safe='/')}&port={lines[3]}"

    def _create(self, identity: Mapping[str, Any]) -> None:
        """Make the data directory, whole or not at all."""
        new = self.home / "pgdata.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        _directory(new, identity)
        self._run(identity, "initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N", data=new)
        new.rename(self.data)

    def version(self) -> str | None:
        """The major version of the PostgreSQL that made the data, None where there are none."""
        with contextlib.suppress(OSError):
            return (self.data / "PG_VERSION").read_text().strip()
        return None

    def _require_version(self, identity: Mapping[str, Any]) -> None:
        """Raise DevDatabaseError for data that the programs cannot read: a directory is of one major version."""
        said = ""
        with contextlib.suppress(OSError):  # the start will say it
            said = subprocess.run(
                [self.bin_dir / "pg_ctl", "--version"], check=False, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL, cwd="/", text=True, **identity,
            ).stdout  # fmt: skip
        found = re.search(r"(\d+)[\w.]*", said)
        have, need = found and found[1], self.version()
        if have and need and have != need:
            raise DevDatabaseError(
                f"the data in {self.data} are of PostgreSQL {need}, and the programs in {self.bin_dir} are "
                f"PostgreSQL {have}: use a PostgreSQL {need}, or remove {self.data} to start with an empty database"
            )

    def _run(self, identity: Mapping[str, Any], program: str, *words: str | Path, data: Path | None = None) -> None:
        command = [self.bin_dir / program, "-D", data or self.data, *words]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
        before = self.log.stat().st_size if self.log.exists() else 0
        # A pipe would stay open in the server, and reading it would never end: hence a file.
        with tempfile.TemporaryFile("w+") as output:
            try:
                subprocess.run(
                    command, check=True, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                    cwd="/", env=environ, start_new_session=True, timeout=START_TIMEOUT + 30, **identity,
                )  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                output.seek(0)
                said = f"{output.read()}{self._logged(before)}"[-2000:].strip()
                parts = [f"{self.bin_dir / program} {_failure(error)}", *([said] if said else [])]
                if identity and "permission denied" in "\n".join(parts).lower():
                    parts.append(
                        f"PostgreSQL refuses root, it ran as user {identity['user']}: {self.home} must be open to it."
                    )
                raise DevDatabaseError("\n".join(parts)) from error

    def _logged(self, before: int) -> str:
        """What the server's log has after so many bytes."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(before)
            return log.read().decode(errors="replace")
        return ""

    def _pid_file(self) -> list[str]:
        try:
            return (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return []

    def _sockets(self) -> Path | None:
        lines = self._pid_file()
        return Path(lines[4]) if len(lines) > 4 and lines[4] else None

    def _alive(self, pid: int) -> bool:
        """Whether `pid` is this server. A zombie is not, nor is a process that got the number later."""
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        process = Path(f"/proc/{pid}")
        if not process.is_dir():
            return True
        try:
            return os.path.samefile(process / "cwd", self.data)
        except OSError:
            return False


def _failure(error: OSError | subprocess.SubprocessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return f"failed (exit code {error.returncode}):"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"did not end within {error.timeout:.0f} s:"
    return f"cannot be run: {error.strerror if isinstance(error, OSError) else error}"


def _identity(data: Path) -> dict[str, Any]:
    """Under which user PostgreSQL runs, as arguments of `subprocess.run`: as root not as root, else as we do."""
    if os.geteuid() != 0:
        return {}
    import pwd

    if data.exists():
        owner = data.stat()
        return {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []}
    for name in UNPRIVILEGED:
        with contextlib.suppress(KeyError):
            entry = pwd.getpwnam(name)
            return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
    raise DevDatabaseError(f"PostgreSQL does not run as root, and there is none of the users {', '.join(UNPRIVILEGED)}")


def _directory(path: Path, identity: Mapping[str, Any]) -> Path:
    if identity:
        os.chown(path, identity["user"], identity["group"])
    return path


def _reachable(bin_dir: Path, home: Path, identity: Mapping[str, Any]) -> Path:
    """`bin_dir`, or a copy of its package below `home` where the server's user cannot come to it (a private venv)."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        subprocess.run(
            [bin_dir / "pg_ctl", "--version"],
            check=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **identity,
        )
        return bin_dir
    package, copy = bin_dir.parent.parent, home / "programs"
    for source in (package, package.with_name(f"{package.name}.libs")):
        if source.is_dir() and not (copy / source.name).exists():
            shutil.copytree(source, copy / source.name)
    for path in (copy, *copy.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | (mode & 0o500) >> 3 | (mode & 0o500) >> 6)
    return copy / bin_dir.relative_to(package.parent)
