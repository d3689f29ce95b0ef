"""A distribution of somebody else's: installed beside ours, switched on by configuration, held to the same tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from support import wheels
from support.tools import autocommit, eventually

from runqueue.testing.server import DSN

FOREIGN = Path(__file__).parents[1] / "foreign_plugin"
CONFIG = """
claim = "fresh_first"
plugins = ["oldest_first_by_kind", "tiers"]

[plugin.tiers]
free_cap = 1
"""
APP = """
import os
from runqueue import RunQueue, Settings

queue = RunQueue(os.environ["RUNQUEUE_DATABASE_URL"], claim="fresh_first", settings=Settings(poll_interval=0.1))

@queue.handler("double")
async def double(run):
    return {"n": 2 * run.input["n"]}
"""
RULES = "select name, value_json #>> '{}' from runqueue.agent_run_rules"
INSTALLED = "select indexname from pg_indexes where schemaname = 'runqueue'"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The programs of an environment with our wheel and with the foreign distribution, and nothing of the source."""
    wheel = wheels.build(tmp_path_factory.mktemp("wheel"))
    programs = wheels.environment(tmp_path_factory.mktemp("clean") / "venv", f"{wheel}[testing]")
    foreign = wheels.build(tmp_path_factory.mktemp("foreign"), FOREIGN)
    wheels.pip(programs / "python", "install", "--no-deps", foreign)
    return programs


def variables(programs, home, **more):
    language = os.environ.get("LANG", "C.UTF-8")
    return {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(home), "LANG": language} | more


def test_it_is_switched_on_by_configuration(installed, blank_url, tmp_path):
    (tmp_path / "runqueue.toml").write_text(CONFIG)
    (tmp_path / "app.py").write_text(APP)
    environment = variables(installed, tmp_path, RUNQUEUE_DATABASE_URL=blank_url)

    def runqueue(*words):
        command = [str(installed / "runqueue"), *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    listed = {x["name"]: x for x in json.loads(runqueue("plugins", "--json"))["plugins"]}
    for name, decides in {"tiers": "runqueue_tenant_policy", "oldest_first_by_kind": "runqueue_claim_order"}.items():
        row = listed[name]
        assert (row["use"], row["version"], row["source"]) == ("named", "1.2.3", "runqueue-tiers")
        assert set(row["hooks"]) == {decides, "runqueue_schema"}
    assert listed["tiers"]["options"] == {"free_cap": 1}

    runqueue("migrate")
    with autocommit(blank_url) as connection:
        made = set(connection.exec_driver_sql(INSTALLED).scalars())
    assert {"tiers_order_idx", "agent_runs_walk_idx", "agent_runs_flying_idx"} <= made

    for n, tenant in enumerate(["free-1", "free-1", "gold-1", "gold-1", "dog"]):
        runqueue("enqueue", "double", json.dumps({"n": n}), "--tenant", tenant)
    command = [str(installed / "runqueue"), "worker", "app:queue"]
    worker = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    try:
        with autocommit(blank_url) as connection:
            done = "select count(*) from runqueue.agent_runs where status = 'done'"
            eventually(lambda: connection.exec_driver_sql(done).scalar() == 5 or worker.poll() is not None, 30)
            rules = dict(connection.exec_driver_sql(RULES).all())
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        said = worker.communicate()[1]
    assert rules == {"claim_order": "oldest_first_by_kind", "tenant_policy": "tiers"}, said
    runs = [json.loads(x) for x in runqueue("list", "--json").splitlines()]
    assert Counter(x["status"] for x in runs) == {"done": 5}


@pytest.mark.parametrize(
    ("option", "said"), [("free_cap = -1", "must be a whole number from 0 on, not -1"), ("fre_cap = 1", "'free_cap'")]
)
def test_a_wrong_option_is_refused(installed, tmp_path, option, said):
    (tmp_path / "runqueue.toml").write_text(f'plugins = ["tiers"]\n[plugin.tiers]\n{option}\n')
    command = [str(installed / "runqueue"), "plugins"]
    environment = variables(installed, tmp_path)
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "'tiers'" in done.stderr
    assert said in done.stderr


def test_its_own_tests_pass_through_the_kit(installed, server_url, tmp_path):
    command = [installed / "python", "-m", "pytest", "-c", FOREIGN / "pyproject.toml", "--rootdir", FOREIGN, "-q",
               FOREIGN / "tests", "-p", "no:cacheprovider", "-rfEs"]  # fmt: skip
    environment = variables(installed, tmp_path, PYTHONDONTWRITEBYTECODE="1", **{DSN: server_url})
    done = subprocess.run(
        [str(x) for x in command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= 30
