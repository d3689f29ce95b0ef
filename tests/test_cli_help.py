"""What a newcomer sees first: the help is complete, its examples are right, and nothing heavy is loaded for it."""

from __future__ import annotations

import shlex
import subprocess
import sys

import click
import pytest
from support.cli import caller, environment, process

from runqueue import __version__
from runqueue.cli.commands.reading import STATS
from runqueue.cli.main import COMMANDS, cli

HEAVY = ["sqlalchemy", "psycopg", "alembic", "rich", "tenacity", "pluggy", "runqueue_migrations", "asyncio"]


def modules_after(tmp_path, *calls):
    """The exit codes of calls in one new process, and which packages it has loaded then."""
    code = f"""
import contextlib, sys
from runqueue.cli.main import run
with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
    codes = [run(x) for x in {calls!r}]
print(*codes)
print(*sys.modules)
"""
    done = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment(), text=True)
    codes, modules = done.splitlines()
    return [int(x) for x in codes.split()], {x.partition(".")[0] for x in modules.split()}


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    return caller(monkeypatch, capsys)


def test_help_loads_nothing_heavy(tmp_path):
    calls = [["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
    codes, loaded = modules_after(tmp_path, *calls)
    assert codes == [0] * len(calls)
    assert "click" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_usage_errors_load_nothing_heavy(tmp_path):
    codes, loaded = modules_after(tmp_path, ["list", "--nonsense"], ["lst"], ["enqueue"], ["list"])
    assert codes == [2] * 4
    assert loaded.isdisjoint(HEAVY)


def test_a_command_that_needs_them_loads_them(tmp_path):
    """So the checks above would see it."""
    codes, loaded = modules_after(tmp_path, ["migrate", "--sql"])
    assert codes == [0]
    assert {"sqlalchemy", "alembic"} <= loaded


def test_help_lists_every_command_with_what_it_does(call):
    result = call("--help")
    assert result.code == 0
    assert result.err == ""
    for name in COMMANDS:
        found = [x for x in result.out.splitlines() if x.split()[:1] == [name] and len(x.split()) > 3]
        assert len(found) == 1, name
    assert "Exit codes" in result.out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example_that_is_right(call, name):
    result = call(name, "-h")
    example = result.out.split("Example:\n")[1].strip()
    program, *words = shlex.split(example)
    assert program == "runqueue"
    assert words[0] == name
    with cli.make_context("runqueue", list(words)) as context:  # parsed, not run
        command = cli.get_command(context, name)
        command.make_context(name, words[1:], parent=context).close()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained(name):
    command = cli.get_command(click.Context(cli), name)
    assert [x.name for x in command.params if isinstance(x, click.Option) and not x.help] == []


def test_options_of_runqueue_may_stand_before_and_after_the_command(call):
    before = call("--claim", "takeover", "--schema", "elsewhere", "migrate", "--sql")
    after = call("migrate", "--sql", "--claim", "takeover", "--schema", "elsewhere")
    assert before == after
    assert "CONCURRENTLY agent_runs_expiry_idx ON elsewhere.agent_runs" in before.out


def test_stats_names_its_columns(call):
    said = " ".join(call("stats", "--help").out.split())
    assert ", ".join(STATS) in said


def test_version(call):
    assert call("--version").out == f"runqueue {__version__}\n"


def test_without_a_command_help_and_a_usage_error(tmp_path):
    result = process(cwd=tmp_path)
    assert (result.code, result.out) == (2, "")
    assert "Commands" not in result.err
    assert "enqueue" in result.err
