"""Each command does what it says, and prints it in the form that was asked for."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from uuid import UUID

import pytest
from sqlalchemy import text
from support.cli import caller
from support.tools import age

from runqueue import Event, QueueStats, Run, RunQueue, RunStatus, Settings

RUN = {x.name for x in dataclasses.fields(Run)}
HOSTILE = 'a\x1b[31m\u202e\nb\t"[red]\x7f\u009b'


@pytest.fixture
def call(url, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", url)
    monkeypatch.setenv("RUNQUEUE_WATCH_INTERVAL", "0.05")
    return caller(monkeypatch, capsys)


@pytest.fixture
def queue(engine):
    return RunQueue(engine, settings=Settings(watch_interval=0.05))


def claim(queue, **options):
    return queue.claim("host:1:boot", **options)[0].lease


# --------------------------------------------------------------------------------------------------------- migrate


def test_migrate_makes_the_schema_and_says_so(blank_url, call, monkeypatch):
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", blank_url)
    first, second = call("migrate"), call("migrate")
    assert (first.code, second.code) == (0, 0)
    assert first.out.endswith("(new)\n")
    assert second.out.endswith("(as it was)\n")
    assert call("list").code == 0


def test_migrate_with_a_policy_makes_its_indexes(blank_url, call, monkeypatch, engine):
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", blank_url)
    assert call("migrate", "--claim", "takeover", "--schema", "elsewhere").code == 0
    queue = RunQueue(blank_url, schema="elsewhere")
    with queue.engine.connect() as connection:
        found = connection.scalars(text("select indexname from pg_indexes where schemaname = 'elsewhere'")).all()
    queue.engine.dispose()
    assert "agent_runs_expiry_idx" in found


def test_the_printed_sql_makes_the_same_schema(blank_url, call, monkeypatch):
    monkeypatch.setenv("RUNQUEUE_DATABASE_URL", blank_url)
    script = call("migrate", "--sql", "--claim", "takeover").out
    queue = RunQueue(blank_url, claim="takeover")
    ddl, indexes = script.split("CREATE INDEX CONCURRENTLY")
    with queue.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(ddl.replace("%", "%%"))
        connection.exec_driver_sql("CREATE INDEX CONCURRENTLY" + indexes)
    queue.engine.dispose()
    assert call("migrate", "--check").code == 0
    assert call("migrate", "--claim", "takeover").out.endswith("(as it was)\n")


# --------------------------------------------------------------------------------------------------------- enqueue


def test_enqueue_prints_the_id_alone(call, queue):
    result = call("enqueue", "research", '{"order": [7, "ü"]}', "--tenant", "acme")
    assert (result.code, result.err) == (0, "")
    run = queue.get(UUID(result.out.strip()))
    assert (run.kind, run.input, run.tenant_id, run.queue) == ("research", {"order": [7, "ü"]}, "acme", "default")


def test_enqueue_passes_every_option_on(call, queue):
    result = call(
        "enqueue", "k", "--tenant", "t", "--queue", "slow", "--priority", "-3", "--at", "2090-01-31T09:00+02:00",
        "--max-attempts", "7", "--budget", '{"usd": 2}', "--key", "once", "--json",
    )  # fmt: skip
    run = queue.get(UUID(result.json["id"]))
    assert (run.queue, run.priority, run.max_attempts, run.budget) == ("slow", -3, 7, {"usd": 2})
    assert (run.idempotency_key, run.input) == ("once", None)
    assert run.available_at == datetime(2090, 1, 31, 7, tzinfo=UTC)


@pytest.mark.parametrize(("delay", "least"), [("90", 90), ("1.5m", 90), ("1h30m", 5400), ("2d", 172_800)])
def test_enqueue_with_a_delay(call, delay, least):
    run = call("enqueue", "k", "--tenant", "t", "--delay", delay, "--json").json
    waits = datetime.fromisoformat(run["available_at"]) - datetime.fromisoformat(run["created_at"])
    assert least - 1 < waits.total_seconds() < least + 5


def test_enqueue_reads_stdin(call, queue):
    result = call("enqueue", "k", "-", "--tenant", "t", stdin='{"text": "ü🙂"}'.encode())
    assert queue.get(UUID(result.out.strip())).input == {"text": "ü🙂"}


@pytest.mark.parametrize(
    ("stdin", "said"),
    [(b"", "no JSON"), (b"\xff\xfe\xfa", "no JSON"), (b"{} {}", "no JSON"), (b'{"a": [NaN]}', "input.a[0]"),
     (b'{"a": "\\u0000"}', "input.a"), (b'{"a": "\\ud800"}', "input.a")],
)  # fmt: skip
def test_enqueue_refuses_what_cannot_be_stored_and_says_where(call, queue, stdin, said):
    result = call("enqueue", "k", "-", "--tenant", "t", stdin=stdin)
    assert result.code == 2
    assert said in result.err
    assert result.err.count("\n") == 1
    assert queue.list().runs == ()


def test_enqueue_with_a_key_makes_one_run(call):
    first, again = (call("enqueue", "k", "1", "--tenant", "t", "--key", "x") for _ in range(2))
    assert first.out == again.out
    other = call("enqueue", "k", "2", "--tenant", "t", "--key", "x")
    assert (other.code, other.out) == (1, "")
    assert first.out.strip() in other.err
    assert other.err.startswith("runqueue: --key: 'x' was used with another input")


# --------------------------------------------------------------------------------------------------------- reading


def test_list_prints_a_run_a_line(call, queue):
    runs = [queue.enqueue("k", tenant_id=f"t{n}") for n in range(3)]
    result = call("list")
    assert [row[:6] for row in result.rows] == [
        [str(x.id), "pending", x.tenant_id, "default", "k", "0/3"] for x in reversed(runs)
    ]
    assert [x["id"] for x in call("list", "--json").lines] == [str(x.id) for x in reversed(runs)]


def test_list_filters(call, queue):
    wanted = queue.enqueue("k", tenant_id="t", queue="q")
    queue.enqueue("k", tenant_id="t", queue="other")
    queue.enqueue("other", tenant_id="t", queue="q")
    queue.enqueue("k", tenant_id="other", queue="q")
    queue.cancel(queue.enqueue("k", tenant_id="t", queue="q").id)
    found = call("list", "--kind", "k", "--tenant", "t", "-q", "q", "--status", "pending").rows
    assert [row[0] for row in found] == [str(wanted.id)]


def test_pages_of_a_list_neither_overlap_nor_miss(call, queue):
    runs = {str(queue.enqueue("k", tenant_id="t").id) for _ in range(5)}
    first = call("list", "--limit", 2, "--json")
    assert first.err == f"there are more: --cursor {first.lines[-1]['id']}\n"
    second = call("list", "--limit", 2, "--json", "--cursor", first.lines[-1]["id"])
    last = call("list", "--limit", 2, "--json", "--cursor", second.lines[-1]["id"])
    assert last.err == ""
    found = [x["id"] for page in (first, second, last) for x in page.lines]
    assert len(found) == 5
    assert set(found) == runs


def test_the_keys_of_json_are_those_of_a_run_in_every_state(call, queue):
    for _ in range(2):
        queue.enqueue("k", {"a": 1}, tenant_id="t")
    queue.fail(claim(queue), ValueError("no"), retry=False)
    claim(queue)
    queue.enqueue("k", tenant_id="t")
    lines = call("list", "--json").lines
    assert {x["status"] for x in lines} == {"pending", "leased", "dead"}
    for found in lines:
        assert found.keys() == RUN - {"locked_by"}
        shown = call("show", found["id"], "--json").json
        assert shown.keys() == RUN | {"events"}
        assert {x: y for x, y in shown.items() if x not in ("locked_by", "events")} == found
        assert datetime.fromisoformat(found["created_at"]).utcoffset().total_seconds() == 0


def test_who_has_a_run_is_told_by_show_and_explain_alone(call, queue):
    run = queue.enqueue("k", tenant_id="t")
    claim(queue)
    for arguments in (["list"], ["list", "--json"], ["stats"], ["cancel", run.id], ["cancel", run.id, "--json"]):
        assert "host:1:boot" not in call(*arguments).out
    for arguments in (["show", run.id], ["show", run.id, "--json"], ["explain", run.id], ["explain", run.id, "--json"]):
        assert "host:1:boot" in call(*arguments).out


def test_show_ends_with_the_last_events(call, queue):
    run = queue.enqueue("k", {"a": 1}, tenant_id="t")
    with queue.transaction(claim(queue)) as tx:
        for n in range(1, 16):
            tx.emit("turn", {"n": n})
    assert [x["seq"] for x in call("show", run.id, "--json").json["events"]] == list(range(6, 16))
    assert [x["seq"] for x in call("show", run.id, "--json", "--events", 2).json["events"]] == [14, 15]
    assert call("show", run.id, "--json", "--events", 0).json["events"] == []
    assert len(call("show", run.id, "--json", "--events", 100).json["events"]) == 15
    rows = call("show", run.id).rows
    assert {row[0]: row[1] for row in rows if not row[0].startswith("event")}.keys() == RUN
    assert [row[0] for row in rows][-1] == "event 15"
    assert rows[-1][-1] == '{"n": 15}'


def test_watch_prints_what_came_and_ends_with_the_run(call, queue):
    run = queue.enqueue("k", tenant_id="t")
    lease = claim(queue)
    with queue.transaction(lease) as tx:
        for n in range(1, 4):
            tx.emit("turn", n)
    queue.complete(lease)
    result = call("watch", run.id, "--json")
    assert result.code == 0
    assert [(x["seq"], x["type"], x["data"]) for x in result.lines] == [(n, "turn", n) for n in range(1, 4)]
    assert all(x.keys() == {x.name for x in dataclasses.fields(Event)} for x in result.lines)
    assert result.err == f"run {run.id} is done\n"
    assert [row[0] for row in call("watch", run.id, "--after", 1).rows] == ["2", "3"]


def test_watch_gives_up_when_told_to(call, queue):
    run = queue.enqueue("k", tenant_id="t")
    result = call("watch", run.id, "--timeout", "0.2")
    assert (result.code, result.out) == (1, "")
    assert "nothing new" in result.err


def test_explain_names_the_rule(call, queue):
    run = queue.enqueue("k", tenant_id="t", delay=3600)
    assert call("explain", run.id).rows[0][:2] == ["pending", "scheduled"]
    found = call("explain", run.id, "--json").json
    assert found.keys() == {"run_id", "status", "rule", "detail"}
    assert (found["run_id"], found["rule"]) == (str(run.id), "scheduled")


def test_stats_count(call, queue):
    for _ in range(3):
        queue.enqueue("k", tenant_id="t")
    claim(queue)
    (row,) = call("stats", "--json").json["queues"]
    assert row.keys() == {x.name for x in dataclasses.fields(QueueStats)}
    assert (row["queue"], row["kind"], row["pending"], row["leased"]) == ("default", "k", 2, 1)
    assert call("stats").rows[0][:5] == ["default", "k", "2", "2", "1"]


# --------------------------------------------------------------------------------------------------------- control


def test_cancel_says_what_became_of_each_run(call, queue):
    first, leased, waiting = (queue.enqueue("k", tenant_id="t") for _ in range(3))
    queue.complete(claim(queue))
    claim(queue)
    result = call("cancel", first.id, leased.id, waiting.id, "--reason", "wrong order")
    assert result.code == 0
    assert result.rows == [
        [str(first.id), "done"], [str(leased.id), "stop requested"], [str(waiting.id), "cancelled"],
    ]  # fmt: skip
    assert queue.get(leased.id).cancel_reason == "wrong order"
    assert queue.get(leased.id).cancel_requested_at is not None


def test_an_unknown_run_among_others_fails_the_call_and_not_the_others(call, queue):
    run = queue.enqueue("k", tenant_id="t")
    unknown = UUID(int=run.id.int ^ 1)
    result = call("cancel", unknown, run.id, "--json")
    assert result.code == 3
    assert str(unknown) in result.err
    assert [(x["id"], x["status"]) for x in result.lines] == [(str(run.id), "cancelled")]


def test_retry_makes_ended_runs_pending_and_refuses_others(call, queue):
    dead, leased = (queue.enqueue("k", tenant_id="t") for _ in range(2))
    queue.fail(claim(queue), "no", retry=False)
    claim(queue)
    result = call("retry", dead.id, leased.id, "--delay", "1h")
    assert result.code == 1
    assert result.rows == [[str(dead.id), "pending"], [str(leased.id), "leased"]]
    assert result.err == f"run {leased.id} is leased: not retried\n"
    run = queue.get(dead.id)
    assert (run.status, run.attempts) == (RunStatus.PENDING, 0)
    assert (run.available_at - run.updated_at).total_seconds() > 3000
    assert call("retry", dead.id).code == 0  # again changes nothing


def test_reap_takes_lost_runs_back(call, queue, engine):
    back, dead = queue.enqueue("k", tenant_id="t"), queue.enqueue("k", tenant_id="t", max_attempts=1)
    for _ in range(2):
        claim(queue)
    age(engine, back.id)
    age(engine, dead.id)
    result = call("reap", "--json")
    assert result.code == 0
    assert result.json == {"pending": 1, "dead": 1, "cancelled": 0, "failed": 0}
    assert queue.get(dead.id).error_code == "lease_expired"
    assert call("reap").rows == [["pending", "0"], ["dead", "0"], ["cancelled", "0"], ["failed", "0"]]


@pytest.mark.parametrize("limit", [0, -1, 10_001])
def test_a_limit_that_makes_no_sense(call, limit):
    for command in ("reap", "list"):
        result = call(command, "--limit", limit)
        assert (result.code, result.out) == (2, "")
        assert "limit: must be from 1 to 10000" in result.err


def test_a_paused_kind_waits_until_it_is_resumed(call, queue):
    run = queue.enqueue("k", tenant_id="t")
    other = queue.enqueue("other", tenant_id="t")
    paused = call("pause", "default", "--kind", "k", "--reason", "provider is down")
    assert paused.code == 0
    assert paused.out == "kind 'k' in queue 'default': paused (provider is down); what runs already goes on\n"
    assert [x.run.id for x in queue.claim("w", limit=5)] == [other.id]
    assert call("explain", run.id).rows[0][1] == "paused"
    resumed = call("resume", "default", "--kind", "k")
    assert (resumed.code, resumed.out) == (0, "kind 'k' in queue 'default': not paused any more\n")
    assert [x.run.id for x in queue.claim("w", limit=5)] == [run.id]


# ---------------------------------------------------------------------------------------------------- hostile text


def test_stored_text_cannot_act_on_a_terminal_and_json_gives_it_back(call, queue):
    run = queue.enqueue(HOSTILE, {HOSTILE: HOSTILE}, tenant_id=HOSTILE, queue=HOSTILE, idempotency_key=HOSTILE)
    lease = claim(queue, queues=[HOSTILE])
    with queue.transaction(lease) as tx:
        tx.emit(HOSTILE, HOSTILE)
    queue.fail(lease, HOSTILE, retry=False)
    for command in (["list"], ["show", run.id], ["watch", run.id], ["explain", run.id], ["stats"], ["retry", run.id]):
        for more in [], ["--json"]:
            if (command[0], more) == ("retry", []):
                continue
            result = call(*command, *more)
            assert result.code == 0, command
            left = set(result.out + result.err) & set("\x1b\u202e\x7f\u009b")
            assert not left, (command, more)
    assert len(call("list").rows) == 1
    assert len(call("list").rows[0]) == 8
    found = call("show", run.id, "--json").json
    assert (found["tenant_id"], found["kind"], found["input"]) == (HOSTILE, HOSTILE, {HOSTILE: HOSTILE})
    assert call("list", "--tenant", HOSTILE, "--json").lines[0]["id"] == str(run.id)
    assert json.loads(call("watch", run.id, "--timeout", "0.2", "--json").out.splitlines()[0])["data"] == HOSTILE
