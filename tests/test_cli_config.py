"""Settings on the command line: where they come from, which of them wins, and what is said of a wrong one."""

from __future__ import annotations

import os
from dataclasses import fields

import click
import pytest

from runqueue.cli.config import DEFAULTS, load
from runqueue.settings import Settings


def said(directory, options=None, **environ):
    with pytest.raises(click.UsageError) as caught:
        load(options or {}, environ, directory)
    return caught.value.message


def test_without_any_source_the_defaults(tmp_path):
    config = load({}, {}, tmp_path)
    assert (config.database_url, config.schema, config.claim, config.plugins) == (None, "runqueue", "reaper", ())
    assert config.settings == Settings()


def test_an_option_beats_a_variable_beats_the_own_file_beats_pyproject(tmp_path):
    sources = ["pyproject", "own", "variable", "option"]
    for count in range(1, 5):
        (tmp_path / "pyproject.toml").write_text('[tool.runqueue]\nschema = "pyproject"\n')
        (tmp_path / "runqueue.toml").write_text('schema = "own"\n' if count > 1 else "")
        environ = {"RUNQUEUE_SCHEMA": "variable"} if count > 2 else {}
        options = {"schema": "option"} if count > 3 else {}
        assert load(options, environ, tmp_path).schema == sources[count - 1]


def test_sources_complement_each_other(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.runqueue]\nlease = 90\nplugins = ["a", "b"]\n')
    (tmp_path / "runqueue.toml").write_text("heartbeat = 20.5\nlisten = false\n")
    config = load({"claim": "takeover"}, {"RUNQUEUE_REAP_LIMIT": "7"}, tmp_path)
    assert config.settings == Settings(lease=90, heartbeat=20.5, listen=False, reap_limit=7)
    assert (config.claim, config.plugins) == ("takeover", ("a", "b"))


def test_every_setting_can_be_a_variable(tmp_path):
    example = {bool: ("off", False), int: ("9", 9), float: ("9.5", 9.5), type(None): ("postgresql://x/y",) * 2}
    for field in fields(Settings):
        text, value = example[type(field.default)]
        environ = {f"RUNQUEUE_{field.name.upper()}": text}
        if field.name == "heartbeat":
            environ["RUNQUEUE_LEASE"] = "60"
        if field.name == "lease":
            environ["RUNQUEUE_HEARTBEAT"] = "1"
        assert getattr(load({}, environ, tmp_path).settings, field.name) == value


@pytest.mark.parametrize(
    ("file", "text", "parts"),
    [
        ("runqueue.toml", "leese = 1", ["runqueue.toml", "'leese'", "'lease'"]),
        ("runqueue.toml", 'database-url = "x"', ["runqueue.toml", "'database-url'", "'database_url'"]),
        ("pyproject.toml", "[tool.runqueue]\nplugin = []", ["pyproject.toml", "'plugin'", "'plugins'"]),
        ("runqueue.toml", "zzz = 1", ["runqueue.toml", "'zzz'"]),
        ("runqueue.toml", 'lease = "long"', ["lease in runqueue.toml", "number"]),
        ("runqueue.toml", "lease = true", ["lease in runqueue.toml", "number"]),
        ("runqueue.toml", "lease = inf", ["lease in runqueue.toml", "number"]),
        ("runqueue.toml", "reap_limit = 1.5", ["reap_limit in runqueue.toml", "whole number"]),
        ("runqueue.toml", "listen = 1", ["listen in runqueue.toml", "true or false"]),
        ("runqueue.toml", "schema = 1", ["schema in runqueue.toml", "text"]),
        ("runqueue.toml", "plugins = [1]", ["plugins in runqueue.toml", "list of names"]),
        ("runqueue.toml", "lease = 10", ["lease in runqueue.toml", "half of the lease"]),
        ("runqueue.toml", "poll_interval = 0", ["poll_interval in runqueue.toml", "greater than 0"]),
        ("runqueue.toml", "lease = =", ["runqueue.toml", "cannot be read", "line 1"]),
        ("pyproject.toml", "[tool]\nrunqueue = 1", ["[tool.runqueue] in pyproject.toml", "must be a table"]),
    ],
)
def test_a_wrong_key_or_value_names_the_file_the_key_and_the_rule(tmp_path, file, text, parts):
    (tmp_path / file).write_text(text)
    message = said(tmp_path)
    assert [x for x in parts if x not in message] == [], message


def test_a_file_that_is_no_text(tmp_path):
    (tmp_path / "runqueue.toml").write_bytes(b"\xff\xfe")
    assert "runqueue.toml: cannot be read" in said(tmp_path)


def test_a_wrong_variable_names_itself(tmp_path):
    assert said(tmp_path, RUNQUEUE_LEASE="long") == "RUNQUEUE_LEASE: must be a number"
    assert said(tmp_path, RUNQUEUE_LEASE="nan") == "RUNQUEUE_LEASE: must be a number"
    assert said(tmp_path, RUNQUEUE_NOTIFY="perhaps") == "RUNQUEUE_NOTIFY: must be true or false"
    assert "RUNQUEUE_LEASE: heartbeat must be less" in said(tmp_path, RUNQUEUE_LEASE="10")


def test_a_variable_that_looks_like_a_slip_is_an_error_and_a_foreign_one_is_not(tmp_path):
    assert "RUNQUEUE_DATABASE_URL?" in said(tmp_path, RUNQUEUE_DATABASEURL="x")
    foreign = {"RUNQUEUE_PORT": "tcp://10.0.0.1:5432", "RUNQUEUE_SERVICE_HOST": "10.0.0.1", "RUNQUEUE_TEST_DSN": "x"}
    assert load({}, foreign, tmp_path).settings == Settings()


def test_an_empty_variable_is_not_given(tmp_path):
    assert load({}, {"RUNQUEUE_SCHEMA": "", "RUNQUEUE_LEASE": ""}, tmp_path).schema == DEFAULTS["schema"]


def test_a_value_is_never_quoted_where_it_may_be_a_secret(tmp_path):
    (tmp_path / "runqueue.toml").write_text('database_url = ["postgresql://u:geheim@h/d"]')
    assert "geheim" not in said(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(tmp_path):
    (tmp_path / "runqueue.toml").touch(0)
    assert "runqueue.toml: cannot be read: Permission denied" in said(tmp_path)
