"""`worker` and `--embedded` as real processes: what they accept, how they stop, and what they leave behind."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from support.cli import PROGRAM, caller, environment, process
from support.postgres import free_port, new_home, programs
from support.tools import eventually

from runqueue import RunQueue, RunStatus, Settings
from runqueue.devdb import Server, database

OURS = ("shop", "broken", "raises", "tells", "asks", "deep", "raises_in_a_library", "spelt")
"""The modules of the application."""

APP = """
import os
from pathlib import Path
from time import sleep
from runqueue import {face}, Settings

queue = {face}(os.environ["RUNQUEUE_DATABASE_URL"], settings=Settings(poll_interval=0.1, drain_timeout=20))
bare = {face}(os.environ["RUNQUEUE_DATABASE_URL"])
elsewhere = {face}("postgresql://u:geheim@127.0.0.1:1/d", schema="other", claim="takeover")
thing = 5

@queue.handler("gate")
def gate(run):
    with run.transaction() as tx:
        tx.emit("inside", None)
    while not Path("open").exists():
        sleep(0.02)
    return "through"

@queue.handler("async")
async def coroutine(run):
    return "async"

@elsewhere.handler("k")
def k(run):
    pass
"""


@pytest.fixture
def app(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "shop/agents.py").write_text(APP.format(face="RunQueue"))
    (tmp_path / "shop/other.py").write_text(APP.format(face="AsyncRunQueue"))
    (tmp_path / "broken.py").write_text("import not_installed_here\n")
    (tmp_path / "raises.py").write_text("1 / 0\n")
    (tmp_path / "asks.py").write_text("import os\n\nurl = os.environ['RUNQUEUE_DATABASE_URL']\n")
    (tmp_path / "deep.py").write_text("import json\nimport raises_in_a_library\n")
    (tmp_path / "raises_in_a_library.py").write_text("import json\n\n\njson.loads('{')\n")
    (tmp_path / "spelt.py").write_text("a = 1\nb = = 2\n")
    (tmp_path / "tells.py").write_text("import os\nraise ValueError(os.environ['RUNQUEUE_DATABASE_URL'])\n")
    return tmp_path


@pytest.fixture
def start(app):
    """Starts a process that is ended with the test, whatever happens."""
    started = []

    def run(*arguments, **variables):
        child = subprocess.Popen(
            [*PROGRAM, *map(str, arguments)], cwd=app, env=environment(**variables),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.communicate()


@pytest.fixture
def queue(engine):
    return RunQueue(engine, settings=Settings(watch_interval=0.05))


@pytest.fixture
def call(app, url, monkeypatch, capsys):
    """Calls in this process, which afterwards knows nothing of the application."""
    monkeypatch.chdir(app)
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", url)
    monkeypatch.setattr(sys, "path", sys.path[:])
    known = set(sys.modules)
    yield caller(monkeypatch, capsys)
    for name in set(sys.modules) - known:
        if name.partition(".")[0] in OURS:
            del sys.modules[name]


def inside(queue, run):
    return eventually(lambda: queue.events(run.id), 20, what="a start of the handler")


@pytest.mark.parametrize("module", ["shop.agents", "shop.other"])
def test_sigterm_lets_the_run_end_and_the_worker_with_0(url, queue, start, app, module):
    run, later = queue.enqueue("gate", tenant_id="t"), queue.enqueue("async", tenant_id="t")
    child = start("worker", f"{module}:queue", "--concurrency", 1, RUNQUEUE_DATABASE_URL=url)
    inside(queue, run)
    child.send_signal(signal.SIGTERM)
    said = child.stderr.readline()
    while "draining" not in said:
        said = child.stderr.readline()
        assert said, "the worker did not say that it drains"
    (app / "open").touch()
    out, _ = child.communicate(timeout=30)
    assert (child.returncode, out) == (0, "")
    assert queue.get(run.id).result == "through"
    assert queue.get(later.id).status is RunStatus.PENDING


def test_the_queues_that_are_named_are_worked_on(url, queue, start):
    elsewhere = queue.enqueue("async", tenant_id="t")
    both = [queue.enqueue("async", tenant_id="t", queue=name) for name in ("slow", "fast")]
    child = start("worker", "shop.agents:queue", "-q", "slow", "-q", "fast", RUNQUEUE_DATABASE_URL=url)
    for run in both:
        assert queue.wait(run.id, 20).result == "async"
    child.send_signal(signal.SIGINT)
    assert child.wait(30) == 0
    assert queue.get(elsewhere.id).status is RunStatus.PENDING


def test_an_option_reaches_the_application_as_a_variable(url, queue, start):
    run = queue.enqueue("async", tenant_id="t")
    child = start("worker", "shop.agents:queue", "--database-url", url)
    assert queue.wait(run.id, 20).result == "async"
    child.terminate()
    assert child.wait(30) == 0


@pytest.mark.parametrize(
    ("target", "code", "parts"),
    [
        ("shop", 2, ["MODULE:ATTRIBUTE", "shop:queue"]),
        ("shop/agents.py:queue", 2, ["did you mean shop.agents:queue"]),
        ("shop.py:queue", 2, ["did you mean shop:queue"]),
        ("nowhere:queue", 2, ["no module 'nowhere'"]),
        ("shop.nowhere:queue", 2, ["no module 'shop.nowhere'"]),
        ("shop.agents:qeue", 2, ["no 'qeue'", "there is shop.agents:queue"]),
        ("shop.agents:queue.nothing", 2, ["no 'queue.nothing'"]),
        ("shop.agents:thing", 2, ["RunQueue or AsyncRunQueue, not int"]),
        ("shop.agents:bare", 2, ["has no handler"]),
        ("broken:queue", 1, ["not_installed_here", "(broken.py:1)"]),
        ("raises:queue", 1, ["ZeroDivisionError", "(raises.py:1)"]),
        ("deep:queue", 1, ["JSONDecodeError", "(raises_in_a_library.py:4)"]),
        ("spelt:queue", 1, ["SyntaxError", "(spelt.py:2)"]),
    ],
)
def test_an_application_that_cannot_be_used(call, target, code, parts):
    result = call("worker", target)
    assert (result.code, result.out) == (code, "")
    assert result.err.count("\n") == 1, result.err
    assert [x for x in parts if x not in result.err] == [], result.err


def test_an_application_without_its_database_url_is_told_how_to_give_it(call, monkeypatch):
    monkeypatch.delenv("RUNQUEUE_DATABASE_URL")
    result = call("worker", "asks:queue")
    assert result.code == 1
    assert "(asks.py:3): give --database-url or set RUNQUEUE_DATABASE_URL" in result.err
    assert result.err.count("\n") == 1


def test_a_traceback_of_the_application_when_asked_for(call):
    assert "raises.py" in call("worker", "raises:queue", "-v").err


@pytest.mark.parametrize("more", [[], ["-v"]])
def test_an_application_that_tells_its_password_is_not_quoted(call, more):
    result = call("worker", "tells:queue", "--database-url", "postgresql://u:geh%40im-nis@127.0.0.1:1/d", *more)
    assert result.code == 1
    assert "ValueError" in result.err
    assert "127.0.0.1" in result.err
    assert "im-nis" not in result.err


@pytest.mark.parametrize("options", [["--schema", "mine"], ["--claim", "reaper"], []])
def test_an_option_that_the_queue_object_would_ignore_is_refused(call, url, options):
    options = options or ["--database-url", url]
    result = call("worker", "shop.agents:elsewhere", *options)
    assert result.code == 2
    assert f"{options[0]}: no effect here" in result.err
    assert "geheim" not in result.err


def test_a_worker_without_a_schema_ends_with_5(blank_url, app):
    result = process("worker", "shop.agents:queue", cwd=app, RUNQUEUE_DATABASE_URL=blank_url)
    assert result.code == 5
    assert "runqueue migrate" in result.err


def test_a_worker_without_a_database_ends_with_4(app):
    address = f"postgresql://u:geheim@127.0.0.1:{free_port()}/d"
    result = process("worker", "shop.agents:queue", cwd=app, RUNQUEUE_DATABASE_URL=address)
    assert result.code == 4
    assert "geheim" not in result.err


def test_watch_prints_each_event_when_it_comes(url, queue, start):
    run = queue.enqueue("k", tenant_id="t")
    lease = queue.claim("w")[0].lease
    child = start("watch", run.id, "--json", RUNQUEUE_DATABASE_URL=url)
    for n in range(1, 4):
        with queue.transaction(lease) as tx:
            tx.emit("turn", n)
        assert f'"seq": {n},' in child.stdout.readline()  # before the next one is made
    queue.complete(lease)
    assert child.wait(20) == 0


def test_ctrl_c_ends_a_watch_with_130_and_no_traceback(url, queue, start):
    run = queue.enqueue("k", tenant_id="t")
    with queue.transaction(queue.claim("w")[0].lease) as tx:
        tx.emit("turn", 1)
    child = start("watch", run.id, RUNQUEUE_DATABASE_URL=url)
    assert child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=20)
    assert child.returncode == 130
    assert "Traceback" not in err


# -------------------------------------------------------------------------------------------------------- embedded


@pytest.fixture
def home():
    home = new_home()
    yield home
    Server(programs(), home / ".runqueue").stop("immediate")
    shutil.rmtree(home)


@pytest.fixture
def embedded(home, app):
    """Starts `runqueue --embedded …` in `home`; ended with the test, whatever happens."""
    (home / "shop").symlink_to(app / "shop")
    started = []

    def run(*arguments):
        child = subprocess.Popen(
            [*PROGRAM, "--embedded", *map(str, arguments)], cwd=home, env=environment(),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(child)
        return child

    yield run
    for child in started:
        child.kill()
        child.communicate()


@pytest.mark.slow
def test_the_embedded_database_lives_as_long_as_the_command_and_keeps_its_data(home, embedded):
    def server():
        return Server(programs(), home / ".runqueue").pid()

    early = embedded("list")
    _, said = early.communicate(timeout=60)
    assert early.returncode == 5
    assert "`runqueue --embedded migrate`" in said
    assert embedded("migrate").wait(60) == 0
    assert server() is None
    assert (home / ".runqueue/.gitignore").read_text() == "*\n"

    worker = embedded("worker", "shop.agents:queue")
    first, second = worker.stderr.readline(), worker.stderr.readline()
    assert re.match(r"PostgreSQL \d+ runs", first)
    assert "works on default" in worker.stderr.readline()
    told = shlex.split(second)[1].partition("=")[2]
    outside = RunQueue(told)
    outside.check()
    outside.engine.dispose()
    with database(home / ".runqueue") as url:
        queue = RunQueue(url)
        run, later = queue.enqueue("async", tenant_id="t"), queue.enqueue("unknown here", tenant_id="t")
        assert queue.wait(run.id, 20).result == "async"
        lease = queue.claim("w", kinds=["unknown here"])[0].lease
        with queue.transaction(lease) as tx:
            tx.emit("inside", None)
        queue.engine.dispose()
    assert server() is not None  # the worker still needs it
    worker.terminate()
    assert worker.wait(30) == 0
    assert server() is None

    watch = embedded("watch", later.id)
    assert "inside" in watch.stdout.readline()
    assert server() is not None
    watch.terminate()
    assert watch.wait(30) == 128 + signal.SIGTERM
    assert server() is None
