"""Plugins on the command line: which are used, with what options, and the commands about them and of theirs."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest
from sqlalchemy import text
from support.cli import PROGRAM, caller, environment
from support.plugins import installed_plugins
from support.tools import autocommit

from runqueue import RunQueue, hookimpl
from runqueue.cli.config import load
from runqueue.schema.indexes import index_state

DEFAULTS = ["priority", "backoff", "checkpoints", "redaction"]


class Orders:
    """Takes options, and brings commands."""

    def __init__(self, speed=1, url=""):
        if not isinstance(speed, int):
            raise ValueError(f"speed must be a whole number, not {speed!r}")
        self.speed, self.url = speed, url

    @hookimpl
    def runqueue_commands(self, group):
        @group.command("hurry", help="Hurry up.")
        @click.option("--twice", is_flag=True)
        @click.pass_obj
        def hurry(app, twice):
            click.echo(f"{self.speed * (1 + twice)} {app.queue.rules()}")
            return 7


class Takes:
    """Wants a name that is taken."""

    @hookimpl
    def runqueue_commands(self, group):
        group.add_command(click.Command("list"))


class Fails:
    """Cannot bring its commands."""

    @hookimpl
    def runqueue_commands(self, group):
        raise RuntimeError("out of order")


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    installed_plugins(monkeypatch, orders=Orders, takes=Takes, fails=Fails(), broken=ImportError("no module 'x'"))
    return caller(monkeypatch, capsys)


@pytest.fixture
def used(url, call, monkeypatch):
    """Calls on a database, with two plugins."""
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("RUNQUEUE_PLUGINS", "fairness,aging")
    return call


def wrong(result, *parts):
    assert (result.code, result.out) == (2, ""), result
    assert result.err.count("\n") == 1, result.err
    assert [x for x in parts if x not in result.err] == [], result.err


def listed(result):
    assert result.code == 0, result.err
    return {row["name"]: row for row in result.json["plugins"] if row["use"] != "no"}


# ------------------------------------------------------------------------------------------------------- configuration


def test_plugins_are_listed_in_their_order_with_where_they_are_from(call):
    found = listed(call("plugins", "--json", "--plugin", "orders", "--plugin", "aging"))
    assert list(found) == [*DEFAULTS, "orders", "aging"]
    assert found["orders"] == {
        "name": "orders", "use": "named", "version": "9.8.7", "source": "of-tests",
        "hooks": ["runqueue_commands"], "options": {},
    }  # fmt: skip
    assert (found["priority"]["use"], found["priority"]["source"]) == ("default", "runqueue")
    assert "runqueue_claim_order" in found["aging"]["hooks"]


def test_installed_plugins_that_are_not_used_are_listed_and_not_loaded(call):
    rows = {x["name"]: x for x in call("plugins", "--json").json["plugins"]}
    assert rows["broken"] == {"name": "broken", "use": "no", "version": "9.8.7", "source": "of-tests"}
    assert rows["fairness"]["use"] == "no"
    lines = call("plugins").rows
    assert [x[:2] for x in lines[:4]] == [[name, "default"] for name in DEFAULTS]
    assert ["broken", "no", "9.8.7", "of-tests", "", ""] in lines


def test_no_plugin_leaves_out_a_default_or_a_configured_one(call, tmp_path, monkeypatch):
    (tmp_path / "runqueue.toml").write_text('plugins = ["orders", "aging"]\n')
    assert list(listed(call("plugins", "--json"))) == [*DEFAULTS, "orders", "aging"]
    one = call("plugins", "--json", "--no-plugin", "orders", "--no-plugin", "redaction")
    assert list(listed(one)) == ["priority", "backoff", "checkpoints", "aging"]
    monkeypatch.setenv("RUNQUEUE_NO_PLUGINS", "aging, backoff")
    assert list(listed(call("plugins", "--json"))) == ["priority", "checkpoints", "redaction", "orders"]
    monkeypatch.delenv("RUNQUEUE_NO_PLUGINS")
    (tmp_path / "runqueue.toml").write_text('plugins = ["orders"]\nno_plugins = ["priority"]\n')
    assert call("plugins", "--json").code == 2, "then nobody orders"
    assert list(listed(call("plugins", "--json", "--no-plugin", "redaction"))) == [*DEFAULTS[:3], "orders"]


def test_tables_are_the_options_of_plugins(call, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.runqueue]\nplugins = ["orders"]\n[tool.runqueue.plugin.orders]\nspeed = 3\nurl = "a"\n'
        "[tool.runqueue.plugin.checkpoints]\nkeep = 9\n"
    )
    (tmp_path / "runqueue.toml").write_text('[plugin.orders]\nurl = "postgresql://u:geheim@h/d"\n')
    result = call("plugins", "--json")
    found = listed(result)
    assert found["checkpoints"]["options"] == {"keep": 9}
    assert found["orders"]["options"]["speed"] == 3, "options of several files complement each other"
    assert found["orders"]["options"]["url"].endswith("@h/d")
    assert "geheim" not in result.out


def test_a_source_that_replaces_the_plugins_replaces_what_was_said_of_them(call, tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.runqueue]\nplugins = ["orders", "aging"]\nno_plugins = ["aging"]\n'
        "[tool.runqueue.plugin.orders]\nspeed = 3\n"
    )
    assert list(listed(call("plugins", "--json"))) == [*DEFAULTS, "orders"]
    assert list(listed(call("plugins", "--json", "--plugin", "fairness"))) == [*DEFAULTS, "fairness"]


@pytest.mark.parametrize(
    ("toml", "parts"),
    [
        ('plugins = ["ordres"]', ["plugins in runqueue.toml", "'ordres'", "did you mean 'orders'"]),
        ('plugins = ["broken"]', ["plugins in runqueue.toml", "'broken'", "cannot be imported", "no module 'x'"]),
        ('plugins = ["aging", "aging"]', ["plugins in runqueue.toml", "named twice"]),
        ('plugins = ["orders"]\n[plugin.ordres]\nspeed = 1', ["[plugin.ordres] in runqueue.toml", "mean 'orders'"]),
        ("[plugin.orders]\nspeed = 1", ["[plugin.orders] in runqueue.toml", "no plugin 'orders' is in use"]),
        ('plugins = ["orders"]\n[plugin.orders]\nsped = 1', ["[plugin.orders] in", "'sped'", "did you mean 'speed'"]),
        ('plugins = ["orders"]\n[plugin.orders]\nspeed = "x"', ["[plugin.orders] in", "whole number, not 'x'"]),
        ('plugins = ["aging"]\n[plugin.aging]\nx = 1', ["[plugin.aging] in runqueue.toml", "takes no options"]),
        ('no_plugins = ["redacton"]', ["no_plugins in runqueue.toml", "did you mean 'redaction'"]),
        ("no_plugins = [1]", ["no_plugins in runqueue.toml", "list of names"]),
        ("no_plugin = []", ["runqueue.toml", "'no_plugin'", "did you mean 'no_plugins'"]),
        ("plugin = []", ["runqueue.toml", "'plugin'", "did you mean 'plugins'"]),
        ("[plugin]\nspeed = 1", ["'speed' in [plugin.NAME] in runqueue.toml", "table of options"]),
    ],
)
def test_a_wrong_name_table_or_option_names_its_place_and_what_was_meant(call, tmp_path, toml, parts):
    (tmp_path / "runqueue.toml").write_text(toml)
    wrong(call("plugins"), *parts)


def test_a_wrong_name_on_the_command_line_or_in_a_variable_too(call, monkeypatch):
    wrong(call("plugins", "--plugin", "agin"), "--plugin: ", "did you mean 'aging'", "installed: ")
    wrong(call("plugins", "--no-plugin", "aging"), "--no-plugin: ", "no plugin 'aging' is in use")
    monkeypatch.setenv("RUNQUEUE_NO_PLUGINS", "redacton")
    wrong(call("plugins"), "RUNQUEUE_NO_PLUGINS: ", "did you mean 'redaction'")
    monkeypatch.setenv("RUNQUEUE_NO_PLUGIN", "redaction")
    wrong(call("plugins"), "RUNQUEUE_NO_PLUGIN: ", "RUNQUEUE_NO_PLUGINS?")


def test_options_of_pyproject_name_their_table(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.runqueue.plugin.a]\nx = 1\n")
    config = load({}, {}, tmp_path)
    assert config.plugin_options == {"a": {"x": 1}}
    assert config.origins["plugin.a"] == "[tool.runqueue.plugin.a] in pyproject.toml"


# ------------------------------------------------------------------------------------------------- commands of plugins


def test_a_plugins_command_runs_where_the_plugin_is_named(used):
    result = used("--plugin", "orders", "hurry", "--twice")
    assert (result.code, result.out) == (7, "2 {}\n"), result.err
    unnamed = used("hurry")
    assert unnamed.code == 2
    assert "No such command 'hurry'" in unnamed.err
    assert "'hurry'" in used("--plugin", "orders", "hury").err


def test_help_lists_the_commands_of_plugins(call, tmp_path):
    assert "hurry" not in call("--help").out
    shown = call("--plugin", "orders", "--help")
    assert (shown.code, shown.err) == (0, "")
    assert "Plugins:" in shown.out
    assert "hurry" in shown.out
    (tmp_path / "runqueue.toml").write_text('plugins = ["orders"]')
    assert "hurry" in call("-h").out
    assert "Usage: runqueue hurry" in call("hurry", "--help").out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("takes", "the plugin 'takes' brings a command 'list', which there is already"),
        ("fails", "the plugin 'fails' cannot add its commands: RuntimeError('out of order')"),
    ],
)
def test_a_taken_name_or_a_failure_is_an_error_that_names_the_plugin(used, name, says):
    for arguments in (["list"], ["plugins"], ["nonsense"]):
        wrong(used("--plugin", name, *arguments), "--plugin: ", says)
    shown = used("--plugin", name, "--help")
    assert shown.code == 0, "help is what one looks for then"
    assert says in " ".join(shown.out.split())
    assert "migrate" in shown.out


def test_two_plugins_must_not_bring_the_same_command(call, monkeypatch):
    installed_plugins(monkeypatch, again=Orders)
    wrong(call("plugins", "--plugin", "orders", "--plugin", "again"), "'again' brings a command 'hurry'")


def test_help_without_plugins_loads_none(tmp_path):
    code = (
        "import sys, contextlib\nfrom runqueue.cli.main import run\n"
        "with contextlib.redirect_stdout(None): run(['--help'])\n"
        "print(sorted({'pluggy', 'sqlalchemy', 'runqueue_plugins', 'importlib.metadata'} & set(sys.modules)))"
    )
    done = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment(), text=True)
    assert "pluggy" not in done
    assert "sqlalchemy" not in done
    (tmp_path / "runqueue.toml").write_text('plugins = ["aging"]')
    done = subprocess.check_output([sys.executable, "-c", code], cwd=tmp_path, env=environment(), text=True)
    assert "pluggy" in done, "so the check above would see it"


# --------------------------------------------------------------------------------------------------- tenants and rules


def test_tenants_are_set_listed_and_cleared(used, url):
    said = used("tenants", "set", "acme", "--weight", "2", "--cap", 5)
    assert said.code == 0
    assert ["cap", "5"] in said.rows
    assert "nobody decides on tenants in this install yet" in said.err
    assert used("tenants", "set", "acme", "--cap", "none", "--json").json == {
        "tenant_id": "acme", "weight": 2.0, "cap": None, "in_flight": 0, "usage": 0.0, "used_at": None,
    }  # fmt: skip
    used("tenants", "set", "zeta", "--cap", 0)
    assert [x["tenant_id"] for x in used("tenants", "--json").lines] == ["acme", "zeta"]
    page = used("tenants", "--limit", 1)
    assert [x[0] for x in page.rows] == ["acme"]
    assert "--after acme" in page.err
    assert [x[0] for x in used("tenants", "--after", "acme").rows] == ["zeta"]
    assert used("tenants", "clear", "acme", "--json").json["weight"] is None
    queue = RunQueue(url, plugins=["fairness", "aging"])
    queue.claim("w")
    assert queue.tenant("zeta").cap == 0
    queue.close()
    assert used("tenants", "clear", "zeta").err == "", "now somebody decides"


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["set", "a"], ["--weight, --cap, or both"]),
        (["set", "a", "--cap", "5.5"], ["--cap", "'5.5' is no whole number"]),
        (["set", "a", "--cap", "-1"], ["cap: must be from 0"]),
        (["set", "a", "--weight", "much"], ["--weight", "'much' is no number"]),
        (["set", "a", "--weight", "nan"], ["weight: must be a number from 0.01 to 1000"]),
        (["set", "", "--cap", "1"], ["tenant_id: must not be empty"]),
        (["clear"], ["TENANT"]),
        (["sett", "a"], ["No such command 'sett'"]),
    ],
)
def test_a_wrong_call_of_tenants_says_why(used, arguments, parts):
    wrong(used("tenants", *arguments), *parts)


def test_rules_are_set_listed_and_unset(used):
    assert used("rules").out == ""
    assert used("rules", "set", "fairness.cap", "5").rows == [["fairness.cap", "5"]]
    assert used("rules", "set", "aging.step", "30.5").code == 0
    told = used("rules", "set", "claim_order", "agin")
    assert told.code == 0
    assert "no plugin 'agin' is installed here; did you mean 'aging'" in told.err
    assert "stop them all" in told.err
    assert used("rules", "set", "tenant_policy", "").code == 0
    assert used("rules", "--json").json == {
        "rules": {"aging.step": 30.5, "claim_order": "agin", "fairness.cap": 5, "tenant_policy": ""}
    }
    assert ["fairness.cap", "5"] in used("rules").rows
    for name in ("aging.step", "claim_order", "tenant_policy", "tenant_policy"):
        assert used("rules", "unset", name).rows == [[f"{name}: not set"]]
    assert used("rules", "--json").json == {"rules": {"fairness.cap": 5}}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["set", "fairness.cap", "many"], ["fairness.cap: must be a whole number", "'many'"]),
        (["set", "--", "fairness.cap", "-1"], ["fairness.cap: must be a whole number from 0", "-1"]),
        (["set", "fairness.cap", "null"], ["null", "rules unset"]),
        (["set", "fairness.cpa", "5"], ["did you mean 'fairness.cap'"]),
        (["unset", "fairness.cpa"], ["did you mean 'fairness.cap'"]),
        (["set", "aging.step", "NaN"], ["aging.step", "finite"]),
        (["set", "aging.step"], ["VALUE"]),
    ],
)
def test_a_wrong_rule_says_why(used, arguments, parts):
    wrong(used("rules", *arguments), *parts)
    assert used("rules", "--json").json == {"rules": {}}


def test_a_rule_needs_its_plugin_here(used):
    wrong(
        used("rules", "set", "fairness.cap", "5", "--plugin", "aging"), "'fairness' is installed, but not in use here"
    )


def test_explain_says_that_caps_were_not_looked_at(used, url, monkeypatch):
    queue = RunQueue(url, plugins=["fairness", "aging"])
    queue.claim("w")
    queue.set_tenant("acme", cap=0)
    run = queue.enqueue("k", tenant_id="acme")
    queue.close()
    assert used("explain", run.id).rows == [["pending", "tenant_cap", "acme has 0 of 0 runs in flight"]]
    monkeypatch.delenv("RUNQUEUE_PLUGINS")
    result = used("explain", run.id)
    assert result.rows[0][1] == "waiting"
    assert "--plugin fairness" in result.err


# --------------------------------------------------------------------------------------------------- migrate and worker


def test_migrate_makes_the_indexes_of_the_named_plugins(blank_url, call, monkeypatch):
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", blank_url)
    assert call("migrate").code == call("migrate", "--check").code == 0
    lacking = call("migrate", "--check", "--plugin", "fairness")
    assert lacking.code == 5
    assert "agent_runs_tenant_idx" in lacking.err
    assert "agent_runs_tenant_idx ON runqueue.agent_runs" in call("migrate", "--sql", "--plugin", "fairness").out
    assert call("migrate", "--plugin", "fairness").code == 0
    assert call("migrate", "--check", "--plugin", "fairness").code == 0
    with autocommit(blank_url) as connection:
        assert index_state(connection, "runqueue", "agent_runs_tenant_idx") is True


APP = """
import os
from runqueue import RunQueue, Settings

queue = RunQueue(os.environ["RUNQUEUE_DATABASE_URL"], settings=Settings(poll_interval=0.1))
fair = RunQueue(os.environ["RUNQUEUE_DATABASE_URL"], plugins=["fairness"])

@queue.handler("k")
def k(run):
    os.kill(os.getpid(), 15)
    return [x.name for x in queue.plugins()]

@fair.handler("k")
def k(run):
    pass
"""


@pytest.fixture
def work(tmp_path, url):
    """A worker process on the application, to its end: its exit code and what it said."""
    (tmp_path / "plugged.py").write_text(APP)

    def run(target, *arguments, **variables):
        done = subprocess.run(
            [*PROGRAM, "worker", target, *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=60,
            env=environment(RUNQUEUE_DATABASE_URL=url, **variables), check=False,
        )  # fmt: skip
        return done.returncode, done.stderr

    return run


def test_a_worker_whose_plugins_differ_from_the_installs_ends_with_1(work, engine):
    queue = RunQueue(engine)
    queue.enqueue("k", tenant_id="a")
    queue.claim("w")
    code, said = work("plugged:fair")
    assert code == 1, said
    assert "in this install 'nobody' decides on tenants, in this process 'fairness'" in said
    assert "runqueue rules set tenant_policy" in said
    assert said.splitlines()[-1].startswith("runqueue: in this install")


@pytest.mark.parametrize("how", ["file", "variable", "option"])
def test_a_worker_uses_the_configured_plugins_where_the_application_names_none(work, engine, tmp_path, how):
    if how == "file":
        (tmp_path / "runqueue.toml").write_text('plugins = ["fairness"]\n[plugin.fairness]\ncharge = "seconds"\n')
    queue = RunQueue(engine, plugins=["fairness"])
    run = queue.enqueue("k", tenant_id="a")
    variables = {"RUNQUEUE_PLUGINS": "fairness"} if how == "variable" else {}
    code, said = work("plugged:queue", *(["--plugin", "fairness"] if how == "option" else []), **variables)
    assert code == 0, said
    assert queue.get(run.id).result == [*DEFAULTS, "fairness"]
    assert queue.rules()["tenant_policy"] == "fairness"
    with engine.connect() as connection:
        charged = connection.execute(text("select count(*) from runqueue.agent_run_tenants where usage > 0")).scalar()
    assert charged == (how == "file")


def test_a_worker_refuses_options_that_the_application_decides_itself(used, tmp_path, monkeypatch):
    (tmp_path / "plugged_here.py").write_text(APP)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.delenv("RUNQUEUE_PLUGINS")
    for arguments in (["--plugin", "aging"], ["--no-plugin", "redaction"]):
        said = f"{arguments[0]}: no effect here, plugged_here:fair names its plugins itself"
        wrong(used("worker", "plugged_here:fair", *arguments), said)
    wrong(used("worker", "plugged_here:queue", "--plugin", "agin"), "--plugin: ", "did you mean 'aging'")
    module = sys.modules.pop("plugged_here")
    module.queue.close()
    module.fair.close()
