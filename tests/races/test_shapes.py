"""Rows that the library did not write: each shape is refused by a constraint, or ends by the usual ways."""

from __future__ import annotations

import itertools

import pytest
from conformance.driver import claim_one
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from runqueue import RunStatus, Undecodable

NOW = "clock_timestamp()"
SHAPES = {
    "status": ["'pending'", "'leased'", "'done'", "'dead'", "'cancelled'"],
    "locked_by": ["null", "'nobody'"],
    "locked_until": ["null", f"{NOW} - interval '1 h'", f"{NOW} + interval '2 s'"],
    "cancel_requested_at": ["null", NOW],
    "available_at": [f"{NOW} - interval '1 h'", f"{NOW} + interval '2 s'", "null"],
    "finished_at": ["null", NOW],
    "attempts": ["0", "3", "4"],
    "on_lost": ["'retry'", "'fail'"],
}


def insert_shapes(engine):
    """Try every combination; how many of them the table refused."""
    refused = 0
    columns = ", ".join(SHAPES)
    with engine.begin() as connection:
        for shape in itertools.product(*SHAPES.values()):
            statement = text(
                f"insert into runqueue.agent_runs (id, tenant_id, kind, max_attempts, updated_at, {columns}) values "
                f"(gen_random_uuid(), 't', 'k', 3, {NOW} - interval '1 h', {', '.join(shape)})"
            )
            try:
                with connection.begin_nested():
                    connection.execute(statement)
            except DBAPIError as error:
                assert error.orig.sqlstate in {"23514", "23502"}, error  # noqa: PT017
                refused += 1
    return refused


@pytest.mark.audit(skip=("TRANSITION", "INV3"))
def test_every_shape_that_the_table_allows_comes_to_an_end(queue, engine, facts):
    total = len(list(itertools.product(*SHAPES.values())))
    refused = insert_shapes(engine)
    [[stored]] = facts.sql("select count(*) from runqueue.agent_runs")
    assert stored == total - refused
    assert stored > 60
    assert facts.sql(
        "select count(*) from runqueue.agent_runs where (status = 'leased') <> (locked_until is not null) "
        "or (status in ('done', 'dead', 'cancelled')) <> (finished_at is not null) or attempts > max_attempts"
    ) == [(0,)]
    soon = "update runqueue.agent_runs set {0} = clock_timestamp() - interval '1 ms' where {0} > clock_timestamp() and status = '{1}'"  # noqa: E501
    for _ in range(5):
        facts.sql(
            soon.format("locked_until", "leased").replace("where", ", updated_at = created_at - interval '1 h' where")
        )
        facts.sql(soon.format("available_at", "pending"))
        queue.reap(limit=10_000)
        for claimed in queue.claim("w", limit=10_000):
            queue.complete(claimed.lease)
    assert facts.sql("select status, count(*) from runqueue.agent_runs where finished_at is null group by 1") == []


UNREADABLE = [
    "'infinity'",
    "'-infinity'",
    "'36869-01-01 00:00+00'",
    "'4713-01-01 00:00+00 BC'",
    "'0001-01-01 00:00+00'",
]
TIMES = [
    "available_at",
    "locked_until",
    "deadline_at",
    "cancel_requested_at",
    "created_at",
    "updated_at",
    "finished_at",
]


@pytest.mark.parametrize("column", TIMES)
def test_a_time_that_python_cannot_read_is_refused(queue, engine, column):
    if column == "finished_at":
        run = queue.cancel(queue.enqueue("k", tenant_id="t").id)
    else:
        run = queue.enqueue("k", tenant_id="t")
        claim_one(queue)
    for value in UNREADABLE:
        with pytest.raises(DBAPIError, match="agent_runs_times_check"), engine.begin() as connection:
            connection.execute(text(f"update runqueue.agent_runs set {column} = {value} where id = '{run.id}'"))


def test_json_that_python_cannot_read_does_not_stop_the_others(queue, engine, facts):
    """The worst row comes first in every batch, and everything around it still works."""
    deep = queue.enqueue("k", tenant_id="t", priority=100)
    with engine.begin() as connection:
        connection.execute(
            text("update runqueue.agent_runs set input_json = cast(:deep as jsonb), budget_json = cast(:big as jsonb)"),
            {"deep": "[" * 5000 + "]" * 5000, "big": "1e5000"},
        )
    for n in range(20):
        queue.enqueue("k", n, tenant_id="t")
    assert len(queue.list().runs) == 21
    claimed = queue.claim("w", limit=50)
    assert claimed[0].run.id == deep.id
    assert isinstance(claimed[0].run.input, Undecodable)
    assert isinstance(queue.get(deep.id).budget, Undecodable)
    queue.complete_many((x.lease, None) for x in claimed)
    assert {x.status for x in queue.list().runs} == {RunStatus.DONE}
