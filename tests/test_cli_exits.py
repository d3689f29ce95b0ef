"""What a failure looks like to a script and to a person: its exit code, one line, and no password."""

from __future__ import annotations

import subprocess
from uuid import uuid4

import pytest
from sqlalchemy import make_url, text
from support.cli import PROGRAM, caller, environment, process
from support.postgres import free_port
from support.tools import autocommit

from runqueue.cli import exits

SECRET = "geh%40im-nis"  # as in a URL; the password is geh@im-nis


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RUNQUEUE_DATABASE_URL", raising=False)
    return caller(monkeypatch, capsys)


def one_line(result, *parts):
    assert result.out == ""
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("runqueue: ")
    assert [x for x in parts if x not in result.err] == [], result.err


def test_the_code_is_that_of_the_process(url, blank_url, tmp_path):
    found = [
        process(*arguments, cwd=tmp_path, RUNQUEUE_DATABASE_URL=address).code
        for address, arguments in (
            (url, ["list"]),
            (url, ["lst"]),
            (url, ["show", uuid4()]),
            (f"postgresql://127.0.0.1:{free_port()}/d", ["list"]),
            (blank_url, ["list"]),
        )
    ]
    assert found == [0, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["lst"], ["No such command 'lst'", "'list'"]),
        (["list", "--stauts", "x"], ["--status"]),
        (["list", "--status", "running"], ["'running'", "pending"]),
        (["show", "17"], ["'17'", "UUID"]),
        (["list"], ["--database-url", "RUNQUEUE_DATABASE_URL", "--embedded"]),
        (["--embedded", "--database-url", "postgresql://h/d", "list"], ["--embedded and --database-url"]),
        (["--database-url", "", "list"], ["--database-url: must be a URL"]),
        (["--schema", "", "migrate", "--sql"], ["--schema: must match"]),
        (["--claim", "repaer", "migrate", "--sql"], ["--claim: ", "'repaer'", "reaper"]),
        (["--database-url", "postgresql://h/d", "--plugin", "nosuch", "list"], ["--plugin:", "nosuch"]),
        (["enqueue", "k"], ["--tenant"]),
        (["enqueue", "k", "{", "--tenant", "a"], ["no JSON", "line 1"]),
        (["enqueue", "k", "[" * 100_000, "--tenant", "a"], ["no JSON", "too deep"]),
        (["enqueue", "k", "--tenant", "a", "--at", "2030-01-31T09:00"], ["zone"]),
        (["enqueue", "k", "--tenant", "a", "--delay", "soon"], ["'soon' is no duration"]),
    ],
)  # fmt: skip
def test_2_when_it_was_called_wrongly(call, arguments, parts):
    result = call(*arguments)
    assert result.code == 2
    one_line(result, *parts)


@pytest.mark.parametrize("arguments", [["show"], ["watch"], ["explain"], ["cancel"], ["retry"]])
def test_3_when_there_is_no_such_run(url, call, monkeypatch, arguments):
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", url)
    unknown = uuid4()
    result = call(*arguments, unknown)
    assert result.code == 3
    one_line(result, str(unknown))


@pytest.mark.parametrize("arguments", [["list"], ["migrate"], ["stats", "--json"], ["enqueue", "k", "--tenant", "a"]])
def test_4_when_the_database_cannot_be_reached(call, arguments):
    result = call("--database-url", f"postgresql://u:{SECRET}@127.0.0.1:{free_port()}/d", *arguments)
    assert result.code == 4
    one_line(result, "cannot be reached", "refused")


def test_4_when_there_is_no_such_database(url, call, monkeypatch):
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", str(make_url(url).set(database="no_such_database")))
    result = call("list")
    assert result.code == 4
    one_line(result, "no_such_database")


def test_4_when_the_network_swallows_everything(proxy, call, monkeypatch):
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", proxy.url)
    monkeypatch.setenv("RUNQUEUE_CONNECT_TIMEOUT", "2")
    proxy.blackhole()
    result = call("list")
    assert result.code == 4
    one_line(result, "cannot be reached")


@pytest.mark.parametrize("arguments", [["list"], ["migrate", "--check"], ["enqueue", "k", "--tenant", "a"]])
def test_5_when_the_schema_is_missing(blank_url, call, arguments):
    result = call("--database-url", blank_url, *arguments)
    assert result.code == 5
    one_line(result, "runqueue migrate")


def test_5_names_the_schema_that_is_missing(blank_url, call):
    result = call("--database-url", blank_url, "list", "--schema", "mine")
    assert result.code == 5
    one_line(result, "`runqueue migrate --schema mine`")


def test_5_when_the_schema_is_old(blank_url, call, monkeypatch):
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", blank_url)
    assert call("migrate").code == 0
    assert call("migrate", "--check").code == 0
    with autocommit(blank_url) as connection:
        connection.execute(text("comment on table runqueue.agent_runs is 'runqueue schema version 0'"))
    result = call("list")
    assert result.code == 5
    one_line(result, "runqueue migrate")


def test_5_when_a_table_has_gone(blank_url, call, monkeypatch):
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", blank_url)
    assert call("migrate").code == 0
    with autocommit(blank_url) as connection:
        connection.execute(text("drop table runqueue.agent_run_events cascade"))
    run_id = call("enqueue", "k", "--tenant", "a").out.strip()
    result = call("watch", run_id)
    assert result.code == 5
    one_line(result, "agent_run_events", "runqueue migrate")


def test_1_when_the_database_refuses(blank_url, call, monkeypatch):
    role = f"nobody_{uuid4().hex[:8]}"
    with autocommit(blank_url) as connection:
        connection.execute(text(f"create role {role} login password 'x'"))
    try:
        monkeypatch.setenv("RUNQUEUE_DATABASE_URL", str(make_url(blank_url).set(username=role)))
        result = call("migrate")
        assert result.code == 1
        one_line(result, "permission denied")
    finally:
        with autocommit(blank_url) as connection:
            connection.execute(text(f"drop role {role}"))


@pytest.mark.parametrize("more", [[], ["-v"]])
@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://u:{SECRET}@127.0.0.1:1/d",
        f"postgresql://u:{SECRET}@127.0.0.1:1/d?no_such_option=1",
        f"postgresql://u@127.0.0.1:1/d?password={SECRET}",
        f"postgresql://u:{SECRET}@127.0.0.1:port/d",
        f"mysql://u:{SECRET}@127.0.0.1:1/d",
        f"postgresql://u:pre/{SECRET}@127.0.0.1:1/d",
        f"{SECRET}",
    ],
)
def test_a_password_is_never_shown(call, address, more):
    result = call("--database-url", address, *more, "list")
    assert result.code in (2, 4)
    said = result.out + result.err
    assert "127.0.0.1" in said or "must be a URL" in said or "no_such_option" in said
    assert SECRET not in said
    assert "geh@im-nis" not in said


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("a", "a password: a (a)", "*** password: *** (***)"),
        ("long secret", "xlong secretx", "x***x"),
        ("a%2Fb%2fc", "a/b/c, a%2Fb%2fc, a%2Fb%2Fc", "***, ***, ***"),
        ("$^.*", "$^.* stays", "*** stays"),
    ],
)
def test_secrets_are_taken_out_whole(secret, text, shown):
    assert exits.without([secret], text) == shown


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("postgresql://u:a%40b@h/d", {"a%40b"}),
        ("postgresql+psycopg://u:a@b/c@h/d", {"a@b/c"}),
        ("postgresql://u@h/d?password=x%26y&sslpassword=z", {"x%26y", "z"}),
        ("postgresql:///d?host=/tmp", set()),
        ("postgresql://u:@h/d", set()),
        ("postgresql://h:5432/d", set()),
    ],
)
def test_the_passwords_of_a_url(url, found):
    assert exits.passwords(url) == found


def test_an_error_quotes_nothing_that_acts_on_the_terminal(call):
    result = call("migrate", "--sql", "--claim", "\x1b]0;title\x07\u202e\n")
    assert result.code == 2
    one_line(result)
    assert not {"\x1b", "\x07", "\u202e"} & set(result.err)


def test_a_traceback_only_when_asked_for(call):
    arguments = ["--database-url", "postgresql://127.0.0.1:1/d", "list"]
    assert "Traceback" not in call(*arguments).err
    assert "Traceback" in call("-v", *arguments).err


def test_a_reader_that_went_away_is_no_error_to_talk_about(url, tmp_path):
    program = subprocess.Popen(
        [*PROGRAM, "migrate", "--sql"], cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    program.stdout.close()
    said = program.stderr.read()
    program.stderr.close()
    assert program.wait(30) == 1
    assert said == b""
