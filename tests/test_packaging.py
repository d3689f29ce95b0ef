"""What is shipped: three packages in one wheel, which works where the source is not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import textwrap
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from support import wheels
from support.tools import eventually

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = ["runqueue", "runqueue_plugins", "runqueue_migrations"]
FOLDERS = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]

APP = """
    import os
    from runqueue import RunQueue, Settings

    queue = RunQueue(os.environ["RUNQUEUE_DATABASE_URL"], settings=Settings(poll_interval=0.1))

    @queue.handler("double")
    async def double(run):
        async with run.transaction() as tx:
            await tx.emit("said", {"n": run.input["n"]})
        return {"n": 2 * run.input["n"]}
"""


def test_the_folders_of_the_wheel_are_typed_packages():
    assert [Path(folder).name for folder in FOLDERS] == PACKAGES
    for folder in FOLDERS:
        assert (ROOT / folder / "__init__.py").exists()
        assert (ROOT / folder / "py.typed").exists()


def test_the_version_is_said_once():
    import runqueue

    assert runqueue.__version__ == PROJECT["project"]["version"]


def test_the_real_alembic_is_the_one_that_is_imported():
    import alembic

    assert alembic.__version__
    assert ROOT not in Path(alembic.__file__).parents or ".venv" in Path(alembic.__file__).parts
    assert not (ROOT / "alembic" / "__init__.py").exists()


def tracked():
    command = ["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]
    try:
        names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a checkout")
    return [path for path in map(ROOT.joinpath, names) if path.is_file()]


KNOWN = r"h|u:[^@\s]*@h|example\.com|api\.example|localhost|www\.apache\.org|semver\.org|keepachangelog\.com"
ELSEWHERE = re.compile(rf"https?://(?!(?:{KNOWN})(?![\w.-]))[\w.@:-]+|(extra-)?index-url|find-links|trusted-host")
"""Any web address but the few that the project has a reason to name."""


def test_no_file_says_where_packages_come_from():
    files = tracked()
    assert len(files) > 50
    found = []
    for path in files:
        if path != Path(__file__):
            text = path.read_bytes().decode("utf-8", "replace")
            found += [f"{path.relative_to(ROOT)}: {x.group()}" for x in ELSEWHERE.finditer(text)]
    assert found == []


@pytest.mark.parametrize("line", ["https://mirror.example/simple", "--index-url x", "http://packages.example/a.whl"])
def test_a_place_of_packages_would_be_seen(line):
    assert ELSEWHERE.search(line)


# ---------------------------------------------------------------------------------------------------- the wheel itself


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return wheels.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The programs of an environment with the wheel and what it depends on, and nothing of the source."""
    return wheels.environment(tmp_path_factory.mktemp("clean") / "venv", f"{wheel}[binary]")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_wheel_holds_three_typed_packages_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = next(name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(info).decode())
        entry_points = archive.read(info.replace("METADATA", "entry_points.txt")).decode()
    assert {name.split("/")[0] for name in names} == {*PACKAGES, info.split("/")[0]}
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names)
    shipped = {
        path.relative_to((ROOT / folder).parent).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in {".py", ".mako"}
    }
    assert shipped <= set(names)
    assert "runqueue_migrations/script.py.mako" in names
    assert "runqueue_migrations/versions/rq0001_initial.py" in names
    assert not [name for name in names if "__pycache__" in name or name.startswith(("tests", "benchmarks", "alembic"))]
    assert metadata["Version"] == PROJECT["project"]["version"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert "runqueue = runqueue.cli.main:main" in entry_points
    for plugin in PROJECT["project"]["entry-points"]["runqueue"]:
        assert f"{plugin} = runqueue_plugins" in entry_points


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_installed_wheel_migrates_a_database_and_works(installed, blank_url, tmp_path):
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    environment = {
        "PATH": f"{installed}:/usr/bin:/bin",
        "RUNQUEUE_DATABASE_URL": blank_url,
        "HOME": str(tmp_path),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
    }

    def run(*command):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    python = str(installed / "python")
    places = run(python, "-c", f"import {', '.join(PACKAGES)} as last; import alembic, runqueue as r; "
                 "print(r.__file__, last.__file__, alembic.__file__, alembic.__version__, r.__version__)")  # fmt: skip
    assert str(ROOT) not in places
    assert places.count("site-packages") == 3

    command = str(installed / "runqueue")
    run(command, "migrate")
    run_id = run(command, "enqueue", "double", '{"n": 21}', "--tenant", "acme")
    worker = subprocess.Popen(
        [command, "worker", "app:queue"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        ended = "from app import queue; from uuid import UUID; import sys; "
        ended += "run = queue.wait(UUID(sys.argv[1]), 30); print(run.status, run.result, len(queue.events(run.id)))"
        assert run(python, "-W", "error", "-c", ended, run_id) == "done {'n': 42} 1"
        worker.send_signal(signal.SIGTERM)
        eventually(lambda: worker.poll() is not None, 30, what="the end of the worker")
        assert worker.returncode == 0
    finally:
        worker.kill()
        print(worker.communicate()[1])
