"""The tools of the agents: they read real files and run real processes, and to repeat one of them is harmless."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from importlib.metadata import requires
from importlib.resources import files
from pathlib import Path

HERE = Path(str(files("runqueue")))


def list_files(package: str, most: int) -> list[str]:
    """The source files of a part of runqueue, the largest first, at most so many."""
    found = sorted((HERE / package).rglob("*.py"), key=lambda path: (-path.stat().st_size, path))
    return [path.relative_to(HERE).as_posix() for path in found[:most]]


def read_file(path: str) -> str:
    """What a file is for, and how long it is."""
    source = (HERE / path).read_text(encoding="utf-8")
    # not by ast.parse: tools run in threads, where Python 3.11's parser now and then mistakes its own depth
    lines = source.splitlines()
    purpose = lines[0].strip('"') if source.startswith('"""') else "says nothing"
    return f"{len(lines)} lines: {purpose}"


def measure(path: str) -> int:
    """How many functions a file defines, as another Python sees it."""
    return len(re.findall(r"FunctionDef\(", _python("-m", "ast", str(HERE / path))))


def list_requirements() -> list[str]:
    """The packages that the installed runqueue needs."""
    needed = [word for word in requires("runqueue") or [] if ";" not in word]
    return sorted({re.split(r"[^\w.-]", word)[0] for word in needed})


def find_version(package: str) -> str:
    """The installed version of a package, as another Python sees it."""
    return _python("-c", f"from importlib.metadata import version; print(version({package!r}))").strip()


def crash() -> str:
    """End this process as the kernel does when memory is short: at once, with no chance to clean up."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def _python(*words: str) -> str:
    command = [sys.executable, "-I", *words]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8", timeout=30).stdout
