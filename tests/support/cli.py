"""The command line, called in this process and in one of its own."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runqueue.cli.main import run

PROGRAM = [sys.executable, "-c", "from runqueue.cli.main import main; main()"]


@dataclass
class Result:
    """What a call left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON document that was printed."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON lines that were printed."""
        return [json.loads(x) for x in self.out.split("\n")[:-1]]

    @property
    def rows(self) -> list[list[str]]:
        """The lines with tabs that were printed."""
        return [x.split("\t") for x in self.out.split("\n")[:-1]]


Call = Callable[..., Result]


def caller(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """A function that runs the command line in this process."""

    def call(*arguments: object, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        code = run([str(x) for x in arguments])
        return Result(code, *capsys.readouterr())

    return call


def environment(**more: str) -> dict[str, str]:
    """The environment without our variables, and with `more`."""
    return {x: value for x, value in os.environ.items() if not x.startswith("RUNQUEUE_")} | more


def process(*arguments: object, cwd: Path, stdin: str = "", **variables: str) -> Result:
    """Run the command line in a process of its own, to its end."""
    done = subprocess.run(
        [*PROGRAM, *map(str, arguments)], cwd=cwd, input=stdin, env=environment(**variables),
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)
