"""The suite is run against copies of the library with one planted bug each, and has to fail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .catalogue import MUTATIONS, Mutation

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {name: x for name, x in os.environ.items() if not name.startswith(("PYTEST_", "RUNQUEUE_"))}
COPIED = ("runqueue", "plugins", "alembic", "tests")


def _copy(target: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", "mutations"))
    shutil.copy(ROOT / "pyproject.toml", target)


def _run(copy: Path, server_url: str, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(str(copy / x) for x in (".", "plugins", "alembic"))
    return subprocess.run(
        [sys.executable, "-m", "pytest", *tests, "-x", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=copy,
        env=ENVIRONMENT | {"PYTHONPATH": path, "RUNQUEUE_TEST_DSN": server_url},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_unchanged_copy_passes(tmp_path: Path, server_url: str) -> None:
    _copy(tmp_path)

    result = _run(
        tmp_path, server_url, ("tests/conformance", "tests/races", "tests/worker/test_unreachable_database.py")
    )
    assert result.returncode == 0, result.stdout[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda x: x.name.replace(" ", "-"))
def test_planted_bug_is_noticed(tmp_path: Path, server_url: str, mutation: Mutation) -> None:
    _copy(tmp_path)
    file = tmp_path / mutation.file
    source = file.read_text()
    for old, new in mutation.changes:
        assert old in source, f"the code has changed, bring the catalogue up to date: {old!r}"
        source = source.replace(old, new)
    file.write_text(source)
    result = _run(tmp_path, server_url, mutation.tests)
    assert result.returncode == 1, f"survived, or did not run at all:\n{result.stdout[-3000:]}{result.stderr[-1000:]}"
    assert " failed" in result.stdout or " error" in result.stdout
