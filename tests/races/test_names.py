"""Tenants, queues and kinds with odd names are ordinary everywhere."""

from __future__ import annotations

import unicodedata

import psycopg
import pytest

from runqueue import InvalidRun, NewRun, RunQueue, Worker

NAMES = [
    "a", "Acme", "acme", "ACME", "x" * 57, "x" * 63, "x" * 64, "x" * 65, "x" * 200, "x" * 255, "日" * 21, "日" * 22,
    "日" * 85, "😀" * 63, "e\u0301", unicodedata.normalize("NFC", "e\u0301"), 'say "hi"', "it's", "100%", "%s", "%(x)s",
    ":name", "a:b", "a/b", "line\nfeed", "tab\there", " leading", "trailing ", " ", "pg_", "public", "null", "NULL",
    "$$", "\\", "\\n", "_", '"; drop table runqueue.agent_runs; --', "{}", "[]", "\u202eevil", "שלום", "a\u200bb", "*",
    "-", "--",
]  # fmt: skip


def test_each_name_goes_through_the_whole_life_of_a_run(queue):
    assert len(set(NAMES)) == len(NAMES)
    runs = queue.enqueue_many(NewRun(kind=name, tenant_id=name, queue=name, idempotency_key=name) for name in NAMES)
    for name, run in zip(NAMES, runs, strict=True):
        assert (run.kind, run.tenant_id, run.queue, run.idempotency_key) == (name,) * 4
        assert queue.list(tenant_id=name).runs == (run,)
        assert queue.list(kind=name, queue=name).runs == (run,)
        assert queue.get(run.id, tenant_id=name) == run
        assert queue.explain(run.id, tenant_id=name).rule == "waiting"
        queue.pause(name, name, reason=name)
        assert queue.claim(name, queues=[name]) == []
        queue.resume(name, name)
        [claimed] = queue.claim(name, queues=[name], kinds=[name], limit=5)
        assert (claimed.run.id, claimed.run.locked_by) == (run.id, name)
        with queue.transaction(claimed.lease) as tx:
            tx.emit(name, {name: name})
        assert [(x.type, x.data) for x in queue.events(run.id, tenant_id=name)] == [(name, {name: name})]
        assert queue.cancel(run.id, name, tenant_id=name).cancel_reason == name
        queue.settle_cancelled(claimed.lease)
    assert {x.queue: x.cancelled for x in queue.stats()} == dict.fromkeys(NAMES, 1)


@pytest.mark.parametrize("name", ["", "x" * 256, "日" * 86, "a\0b", "a\ud800", None, 7, b"x"])
def test_a_name_that_cannot_be_kept_is_refused_by_its_field(queue, name):
    good = {"kind": "k", "tenant_id": "t", "queue": "q"}
    for field in good:
        with pytest.raises(InvalidRun) as caught:
            queue.enqueue(**good | {field: name})
        assert caught.value.field == field
    assert queue.list().runs == ()


def test_hints_are_short_equal_for_equal_queues_and_say_nothing(queue, url):
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as listener:
        listener.execute("listen runqueue_runqueue")
        queue.enqueue_many(NewRun(kind="secret", tenant_id="secret", queue=name) for name in NAMES for _ in range(2))
        listener.execute("select 1")
        heard = [(x.channel, x.payload) for x in listener.notifies(timeout=0)]
    assert len(heard) == len(set(heard)) == len(NAMES)
    for channel, payload in heard:
        assert len(channel.encode()) <= 63
        assert len(payload.encode()) < 64
        assert payload.isascii()
        assert "secret" not in payload
        assert payload.removeprefix("work:") not in NAMES


def test_ten_thousand_runs_in_one_call_are_one_hint(queue, url):
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as listener:
        listener.execute("listen runqueue_runqueue")
        queue.enqueue_many(NewRun(kind="k", tenant_id="t") for _ in range(10_000))
        listener.execute("select 1")
        assert len(list(listener.notifies(timeout=0))) == 1


@pytest.mark.parametrize("length", [1, 31, 41])
def test_a_listener_hears_the_channel_of_any_schema(engine, url, settings, length):
    """PostgreSQL cuts a channel's name at 63 bytes for a listener, and refuses it for a sender."""
    from runqueue.schema import migrate

    schema = "s" * length
    migrate.upgrade(engine, schema=schema)
    queue = RunQueue(engine, schema=schema, settings=settings)
    channel = queue.core.ctx.channel
    assert len(channel.encode()) <= 63
    with psycopg.connect(url.replace("postgresql+psycopg", "postgresql"), autocommit=True) as listener:
        listener.execute(psycopg.sql.SQL("listen {}").format(psycopg.sql.Identifier(channel)))
        queue.enqueue("k", tenant_id="t")
        listener.execute("select 1")
        assert [x.channel for x in listener.notifies(timeout=0)] == [channel]


def test_a_worker_drains_odd_queues_and_kinds(queue):
    names = NAMES[::4]
    done = []
    for name in names:
        queue.handler(name)(lambda run: done.append(run.kind))
    queue.enqueue_many(NewRun(kind=name, tenant_id=name, queue=name) for name in names)
    Worker(queue, queues=names, concurrency=4).drain()
    assert sorted(done) == sorted(names)
