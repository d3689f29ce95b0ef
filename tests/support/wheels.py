"""The library as others get it: a wheel, installed where the source is not."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).parents[2]


def build(where: Path, source: Path = ROOT) -> Path:
    """Make the wheel of a distribution."""
    pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", where, source)
    [wheel] = where.glob("*.whl")
    return wheel


def environment(home: Path, *requirements: object) -> Path:
    """The programs of a new environment with these, and nothing of the source."""
    venv.create(home, with_pip=True)
    pip(home / "bin" / "python", "install", "--constraint", ROOT / "constraints.txt", *requirements)
    return home / "bin"


def pip(python: object, *arguments: object) -> None:
    """Run pip, quietly."""
    command = [python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
