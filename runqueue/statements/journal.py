"""Writing the event stream. A run's counter is in its own row, so numbers follow commit order, without gaps."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    Executable,
    Text,
    Uuid,
    bindparam,
    cast,
    column,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.sql.selectable import CTE

from runqueue.schema.tables import Tables
from runqueue.statements.parts import CLOCK, ONE, array, json_text


def record(
    t: Tables, moved: CTE, type_: ColumnElement[Any], data: ColumnElement[Any], *where: ColumnElement[bool]
) -> CTE:
    """An event for each row that `moved` returned; the UPDATE there has already raised `event_seq`."""
    rows = select(moved.c.id, moved.c.event_seq, type_, data).where(*where)
    return insert(t.events).from_select(["run_id", "seq", "type", "data_json"], rows).cte("journal")


@cache
def fence_and_write(t: Tables) -> Executable:
    """The last statement of a fenced transaction: check the lease under a lock, store the events and the checkpoint.

    Returns the new `event_seq` and `checkpoint_seq`, or no row where the lease is lost. The row stays locked only from
    here to the commit, so heartbeats never wait on what the handler did before.
    """
    runs = t.runs
    count = bindparam("event_count", type_=BigInteger)
    saves = bindparam("saves", type_=BigInteger)
    fence = (
        update(runs)
        .where(
            runs.c.id == bindparam("run_id", type_=Uuid),
            runs.c.fencing_token == bindparam("token", type_=BigInteger),
            runs.c.locked_until.is_not(None),
        )
        .values(
            event_seq=runs.c.event_seq + count,
            checkpoint_seq=runs.c.checkpoint_seq + saves,
            spent=runs.c.spent + bindparam("spent", type_=Double),
            updated_at=CLOCK,
        )
        .returning(runs.c.id, runs.c.event_seq, runs.c.checkpoint_seq, runs.c.fencing_token)
        .cte("fence")
    )
    given = (
        func.unnest(array("types", Text()), array("data", Text()))
        .table_valued(column("type", Text), column("data", Text), with_ordinality="n", name="e")
        .render_derived()
    )
    events = (
        insert(t.events)
        .from_select(
            ["run_id", "seq", "type", "data_json"],
            select(
                fence.c.id, fence.c.event_seq - count + given.c.n, given.c.type, json_text(given.c.data)
            ).select_from(fence.join(given, literal(True))),
        )
        .cte("events")
    )
    checkpoint = (
        insert(t.checkpoints)
        .from_select(
            ["run_id", "seq", "fencing_token", "state_json"],
            select(
                fence.c.id,
                fence.c.checkpoint_seq,
                fence.c.fencing_token,
                json_text(bindparam("checkpoint", type_=Text)),
            ).where(saves > 0),
        )
        .cte("checkpoint")
    )
    pruned = (
        t.checkpoints.delete()
        .where(
            t.checkpoints.c.run_id == fence.c.id,
            t.checkpoints.c.seq <= fence.c.checkpoint_seq - bindparam("kept", type_=BigInteger),
            saves > 0,
        )
        .cte("pruned")
    )
    return select(fence.c.event_seq, fence.c.checkpoint_seq).add_cte(events, checkpoint, pruned)


@cache
def fence_only(t: Tables) -> Executable:
    """The fence of a transaction with neither event nor checkpoint: a lock that any taker of the run waits for."""
    runs = t.runs
    return (
        select(runs.c.id)
        .where(
            runs.c.id == bindparam("run_id", type_=Uuid),
            runs.c.fencing_token == bindparam("token", type_=BigInteger),
            runs.c.locked_until.is_not(None),
        )
        .with_for_update(read=True)
    )


@cache
def checkpoints(t: Tables) -> Executable:
    """The newest checkpoint of each of the runs in `ids`."""
    given = func.unnest(array("ids", Uuid())).table_valued(column("id", Uuid()), name="d").render_derived()
    newest = (
        select(t.checkpoints.c.run_id, cast(t.checkpoints.c.state_json, Text).label("state"))
        .where(t.checkpoints.c.run_id == given.c.id)
        .order_by(t.checkpoints.c.seq.desc())
        .limit(ONE)
        .lateral("newest")
    )
    return select(newest.c.run_id, newest.c.state).select_from(given.join(newest, literal(True)))
