"""A PostgreSQL for tests: fast rather than durable, in a directory of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from runqueue.devdb import find

DSN, HOME = "RUNQUEUE_TEST_DSN", "RUNQUEUE_TEST_HOME"
"""Variables: the server to use, and the directory of the one that is started where there is none."""

SPEED = {
    "max_connections": "300",
    "fsync": "off",
    "max_wal_size": "256MB",
    "dynamic_shared_memory_type": "mmap",  # in the data directory, so that a server that is killed leaves nothing
}
"""For servers whose data nobody will miss. A crash of PostgreSQL alone loses nothing even so; one of the host would."""


def new_home() -> Path:
    """A directory for a server's data: in memory where there is plenty, which makes a new database ten times as fast.

    Not below pytest's own directory, which is closed to other users; as root the server runs as another.
    """
    memory = Path("/dev/shm")  # a container often has 64 MB of it
    roomy = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 4 << 30
    home = Path(tempfile.mkdtemp(prefix="runqueue-tests-", dir=memory if roomy else None))
    home.chmod(0o711)
    return home


def programs() -> Path:
    """The directory of PostgreSQL's programs: RUNQUEUE_TEST_PG_BIN, else what `runqueue.devdb.find()` says."""
    chosen = os.environ.get("RUNQUEUE_TEST_PG_BIN")
    return Path(chosen) if chosen else find()
