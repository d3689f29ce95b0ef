"""Rules about imports that the import linter cannot say; the others are in pyproject.toml and run in `make check`."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PURE = sorted(path for name in ("statements", "schema", "policies") for path in (ROOT / "runqueue" / name).glob("*.py"))


def imported(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", PURE, ids=lambda path: str(path.relative_to(ROOT)))
def test_statements_know_nothing_of_the_orm(path):
    assert not [name for name in imported(path) if name.startswith(("sqlalchemy.orm", "sqlalchemy.ext"))]


def test_there_is_no_package_named_alembic_here():
    assert not (ROOT / "alembic" / "__init__.py").exists()  # it would hide the real one
