"""Storing runs, and idempotency keys within one process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runqueue import IdempotencyConflict, InvalidRun, NewRun, RunNotFound, RunStatus


def test_a_run_is_stored_as_given_and_read_back_equal(q, facts):
    run = q.enqueue(
        "k", {"a": [1, None, "ü"]}, tenant_id="t", queue="lane", priority=7, max_attempts=9, budget={"usd": 1.5},
        idempotency_key="key",
    )  # fmt: skip
    assert (run.status, run.attempts, run.fencing_token) == (RunStatus.PENDING, 0, 0)
    assert (run.tenant_id, run.queue, run.kind, run.priority, run.max_attempts) == ("t", "lane", "k", 7, 9)
    assert (run.input, run.budget, run.idempotency_key) == ({"a": [1, None, "ü"]}, {"usd": 1.5}, "key")
    assert q.get(run.id) == run
    assert run.id.version == 7
    assert facts.sql("select count(*) from runqueue.agent_run_events")[0][0] == 0


def test_defaults(q):
    run = q.enqueue("k", tenant_id="t")
    assert (run.input, run.budget, run.queue, run.priority, run.max_attempts) == (None, None, "default", 0, 3)
    assert run.available_at.tzinfo is not None
    assert run.locked_by is run.locked_until is run.finished_at is run.result is None


def test_many_are_returned_in_the_order_given(q):
    runs = q.enqueue_many(NewRun(kind="k", input=n, tenant_id=f"t{n % 3}", priority=-n) for n in range(50))
    assert [run.input for run in runs] == list(range(50))
    assert [run.id for run in runs] == sorted(run.id for run in runs)
    assert q.enqueue_many([]) == []


def test_a_delay_counts_from_the_databases_clock(q, facts):
    run = q.enqueue("k", tenant_id="t", delay=timedelta(minutes=5))
    [[wait]] = facts.sql("select extract(epoch from available_at - clock_timestamp()) from runqueue.agent_runs")
    assert 290 < wait <= 300
    assert q.claim("w") == []
    assert q.explain(run.id).rule == "scheduled"


def test_a_time_is_kept(q):
    when = datetime(2031, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    assert q.enqueue("k", tenant_id="t", available_at=when).available_at == when
    late = q.enqueue("k", tenant_id="t", available_at=datetime(1999, 1, 1, tzinfo=UTC))
    assert [x.run.id for x in q.claim("w", limit=5)] == [late.id]


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("tenant_id", {"tenant_id": ""}),
        ("tenant_id", {"tenant_id": "a\0"}),
        ("queue", {"queue": "x" * 256}),
        ("priority", {"priority": 2**31}),
        ("max_attempts", {"max_attempts": 0}),
        ("delay", {"delay": -1}),
        ("delay", {"delay": 1, "available_at": datetime(2030, 1, 1, tzinfo=UTC)}),
        ("available_at", {"available_at": datetime(2030, 1, 1)}),  # noqa: DTZ001 - the point
        ("available_at", {"available_at": datetime.max.replace(tzinfo=UTC)}),
        ("input.a[1]", {"input": {"a": [1, float("nan")]}}),
        ("budget.x", {"budget": {"x": "\ud800"}}),
        ("idempotency_key", {"idempotency_key": "x" * 1025}),
    ],
)
def test_a_value_that_cannot_be_stored_names_its_field_and_stores_nothing(q, facts, field, change):
    before = facts.everything()
    with pytest.raises(InvalidRun) as caught:
        q.enqueue("k", **{"tenant_id": "t"} | change)
    assert caught.value.field == field
    good = NewRun(kind="k", tenant_id="t")
    with pytest.raises(InvalidRun) as caught:
        q.enqueue_many([good, NewRun(**{"kind": "k", "tenant_id": "t"} | change)])
    assert caught.value.field == f"runs[1].{field}"
    assert facts.everything() == before


def test_the_same_key_gives_back_the_same_run(q, facts):
    first = q.enqueue("k", {"a": 1, "b": 2.0}, tenant_id="t", idempotency_key="key")
    again = q.enqueue("k", {"b": 2, "a": 1}, tenant_id="t", idempotency_key="key", priority=5)
    assert again == first
    assert len(facts.everything()["runqueue.agent_runs"]) == 1


def test_the_same_key_with_another_input_is_refused_and_names_the_run(q, facts):
    first = q.enqueue("k", 1, tenant_id="t", idempotency_key="key")
    before = facts.everything()
    with pytest.raises(IdempotencyConflict) as caught:
        q.enqueue("k", 2, tenant_id="t", idempotency_key="key")
    assert caught.value.run_id == first.id
    with pytest.raises(IdempotencyConflict):
        q.enqueue_many([NewRun(kind="k", tenant_id="t", input=x, idempotency_key="new") for x in (1, 2)])
    assert facts.everything() == before


def test_one_batch_may_use_a_key_twice(q, facts):
    old = q.enqueue("k", 0, tenant_id="t", idempotency_key="old")
    keys = ["a", "old", None, "a", None]
    runs = q.enqueue_many([NewRun(kind="k", tenant_id="t", input=0, idempotency_key=x) for x in keys])
    assert runs[0] == runs[3]
    assert runs[1] == old
    assert len({run.id for run in runs}) == 4
    assert len(facts.everything()["runqueue.agent_runs"]) == 4


def test_a_run_of_another_tenant_or_of_nobody_is_not_found(q):
    run = q.enqueue("k", tenant_id="a")
    for read in (q.get, q.cancel, q.retry, q.explain, q.events):
        with pytest.raises(RunNotFound):
            read(run.id, tenant_id="b")
        with pytest.raises(RunNotFound):
            read(type(run.id)(int=7))
    assert q.get(run.id, tenant_id="a") == run
