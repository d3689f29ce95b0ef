"""An argument of the wrong kind is refused by name, whatever the method; nothing of it reaches SQL."""

from __future__ import annotations

from uuid import uuid4

import pytest

from runqueue import AsyncRunQueue, InvalidRun, RunQueue, Worker

WRONG = {
    "kinds": [lambda q, run: q.claim("w", kinds="kind")],
    "cursor": [lambda q, run, x=x: q.list(cursor=x) for x in ("next", 1)],
    "after": [lambda q, run, x=x: q.events(run.id, x) for x in ("1", None, True, -1, 2**70)],
    "tenant_id": [
        lambda q, run: q.get(run.id, tenant_id="a\0b"),
        lambda q, run: q.cancel(run.id, tenant_id=1),
        lambda q, run: q.retry(run.id, tenant_id={}),
        lambda q, run: q.explain(run.id, tenant_id="\ud800"),
    ],
    "reason": [lambda q, run: q.cancel(run.id, 1), lambda q, run: q.pause(reason={})],
    "runs[0]": [lambda q, run: q.enqueue_many([{"kind": "k", "tenant_id": "t"}])],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_argument_is_named(queue, field):
    run = queue.enqueue("k", tenant_id="t")
    for call in WRONG[field]:
        with pytest.raises(InvalidRun) as caught:
            call(queue, run)
        assert caught.value.field == field
    assert queue.get(run.id) == run


def test_a_reason_is_cleaned_and_stored(queue):
    queue.enqueue("k", tenant_id="t")
    (claimed,) = queue.claim("w")
    queue.pause(reason="a\0b\ud800")
    queue.release(claimed.lease, reason="a\0b\ud800")
    (released,) = queue.events(claimed.run.id)
    assert released.data["reason"].startswith("a")
    assert "\0" not in released.data["reason"]


def test_a_release_without_a_text_as_reason_keeps_the_lease(queue):
    queue.enqueue("k", tenant_id="t")
    (claimed,) = queue.claim("w", lease=3600)
    with pytest.raises(InvalidRun, match="reason"):
        queue.release(claimed.lease, reason=b"bytes")
    queue.complete(claimed.lease)


def test_leases_may_come_from_a_generator(queue):
    queue.enqueue("k", tenant_id="t")
    (claimed,) = queue.claim("w", lease=3600)
    assert [x.renewed for x in queue.heartbeat(x for x in [claimed.lease])] == [True]


def test_a_cursor_may_be_text(queue):
    runs = [queue.enqueue("k", tenant_id="t") for _ in range(3)]
    page = queue.list(limit=2)
    assert queue.list(cursor=str(page.cursor)).runs == (runs[0],)
    assert queue.list(cursor=uuid4().hex).runs is not None


@pytest.mark.parametrize("face", [RunQueue, AsyncRunQueue])
@pytest.mark.parametrize("engine", [None, 5, "sqlite://", "nonsense", object()])
def test_what_is_no_engine_is_refused_by_name(face, engine):
    with pytest.raises(InvalidRun) as refused:
        face(engine)
    assert refused.value.field == "engine"


def test_the_other_kind_of_engine_session_or_queue_is_refused_by_name(engine, async_engine):
    with pytest.raises(InvalidRun, match="engine: must be Engine or str or URL, not AsyncEngine"):
        RunQueue(async_engine)
    with pytest.raises(InvalidRun, match="engine: must be AsyncEngine or str or URL, not Engine"):
        AsyncRunQueue(engine)
    with pytest.raises(InvalidRun, match="connection: must be Connection or Session, not Engine"):
        RunQueue(engine).enqueue("k", tenant_id="t", connection=engine)
    with pytest.raises(InvalidRun, match="queue: must be RunQueue or AsyncRunQueue, not Engine"):
        Worker(engine)
