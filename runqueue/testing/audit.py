"""Every change of every run, recorded by a trigger, and the rules that the record must obey.

The trigger fires under the row's lock, so the entries of one run are in the order in which its changes took effect.
Only tests install it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any

from sqlalchemy import Connection

TERMINAL = {"done", "dead", "cancelled"}
ALLOWED = {
    ("pending", "leased"), ("pending", "cancelled"),
    ("leased", "leased"), ("leased", "pending"), ("leased", "done"), ("leased", "dead"), ("leased", "cancelled"),
    ("dead", "pending"), ("cancelled", "pending"),
    ("pending", "pending"),
}  # fmt: skip
"""The last is no transition: a pending run's time or priority was changed."""

INSTALL = """
create schema runqueue_audit;

create table runqueue_audit.audit (
    n bigint generated always as identity primary key,
    at timestamptz not null default clock_timestamp(),
    txid bigint not null default txid_current(),
    op text not null,
    run_id uuid not null,
    old_status text, old_attempts int, old_max int, old_token bigint, old_until timestamptz,
    new_status text, new_attempts int, new_max int, new_token bigint, new_until timestamptz
);

create function runqueue_audit.note() returns trigger language plpgsql as $$
begin
    insert into runqueue_audit.audit (op, run_id, old_status, old_attempts, old_max, old_token, old_until,
                                      new_status, new_attempts, new_max, new_token, new_until)
    values (tg_op, coalesce(new.id, old.id),
            old.status, old.attempts, old.max_attempts, old.fencing_token, old.locked_until,
            new.status, new.attempts, new.max_attempts, new.fencing_token, new.locked_until);
    return null;
end $$;

create trigger audit after insert or update or delete on runqueue.agent_runs
    for each row execute function runqueue_audit.note();
"""

LOG = """
select n, op, run_id, old_status, old_attempts, old_token, new_status, new_attempts, new_max, new_token,
       old_until > at as held, at::text, old_until::text
from runqueue_audit.audit order by run_id, n
"""
"""Times as text: Python cannot hold all that PostgreSQL can, and a row with one of those must not stop the check."""


STATE = {
    "INV1: run {id} is neither claimable nor held: {status}, {attempts} of {max_attempts}, until {locked_until}": """
        select id, status, attempts, max_attempts, locked_until::text from runqueue.agent_runs
        where status not in ('done', 'dead', 'cancelled') and not coalesce(
            (status = 'pending' and attempts < max_attempts and isfinite(available_at)
             and available_at < clock_timestamp() + interval '100 years')
            or (status = 'leased' and isfinite(locked_until)
                and locked_until < clock_timestamp() + interval '100 years'), false)""",
    "INV4: run {id} has event_seq {event_seq}, and {n} events from {low} to {high}": """
        select r.id, r.event_seq, count(e.seq) n, min(e.seq) low, max(e.seq) high
        from (select id, event_seq from runqueue.agent_runs
              union all select id, event_seq from runqueue.agent_runs_history) r
        left join runqueue.agent_run_events e on e.run_id = r.id
        group by 1, 2
        having r.event_seq <> count(e.seq) or min(e.seq) <> 1 or max(e.seq) <> count(e.seq)""",
    "INV4: run {id} is done, and its newest lease {fencing_token} did not end it, {settled_token} did": """
        select id, fencing_token, settled_token from runqueue.agent_runs
        where status = 'done' and settled_token <> fencing_token""",
    "INV5: run {id} has the wrong shape: {status}, by {locked_by} until {locked_until}, finished {finished_at}": """
        select id, status, locked_by, locked_until::text, finished_at::text from runqueue.agent_runs
        where (status in ('done', 'dead', 'cancelled')) <> (finished_at is not null)
        or (status = 'leased') <> (locked_by is not null) or (status = 'leased') <> (locked_until is not null)""",
    "FENCE: run {id}, token {fencing_token}: checkpoint {seq} has token {wrote}, one before it has {before}": """
        select r.id, r.fencing_token, c.seq, c.wrote, c.before
        from (select run_id, seq, fencing_token wrote, max(fencing_token) over (partition by run_id order by seq) before
              from runqueue.agent_run_checkpoints) c
        join runqueue.agent_runs r on r.id = c.run_id
        where c.wrote < c.before or c.wrote > r.fencing_token""",
    "INV8: run {id} is in the hot table and in the history": """
        select id from runqueue.agent_runs join runqueue.agent_runs_history using (id)""",
    "INV8: run {id} is twice in the history": """
        select id from runqueue.agent_runs_history group by id having count(*) > 1""",
    "INV8: event {seq} belongs to run {id}, which does not exist": """
        select run_id id, seq from runqueue.agent_run_events e
        where not exists (select from runqueue.agent_runs r where r.id = e.run_id)
        and not exists (select from runqueue.agent_runs_history r where r.id = e.run_id)""",
    "INV8: run {id} was deleted and is not in the history": """
        select distinct run_id id from runqueue_audit.audit a where op = 'DELETE'
        and not exists (select from runqueue.agent_runs r where r.id = a.run_id)
        and not exists (select from runqueue.agent_runs_history r where r.id = a.run_id)""",
}
"""What each query finds is a violation."""


def install(connection: Connection) -> None:
    """Record from now on. The caller commits."""
    connection.exec_driver_sql(INSTALL)


def check(connection: Connection, *, skip: Collection[str] = ()) -> None:
    """Raise AssertionError with all violations, save those of the invariants in `skip` (`"INV8"`, …)."""
    found = [message for message in violations(connection) if message.split(":")[0] not in skip]
    assert not found, f"{len(found)} violations of the invariants:\n" + "\n".join(found[:50])


def violations(connection: Connection) -> Iterator[str]:
    """Each violation as a sentence that begins with its invariant."""
    for message, query in STATE.items():
        for row in connection.exec_driver_sql(query).mappings():
            yield message.format_map(row)
    rows = connection.exec_driver_sql(LOG).all()
    for run_id, entries in groupby(rows, key=lambda row: row.run_id):
        for invariant, what in _of_one_run(entries):
            yield f"{invariant}: run {run_id} {what}"


def _of_one_run(entries: Iterator[Any]) -> Iterator[tuple[str, str]]:
    last: Any = None
    deleted_token = 0
    for e in entries:
        if e.op == "INSERT":
            if e.new_status != "pending":
                yield "TRANSITION", f"was inserted as {e.new_status} (entry {e.n})"
            if e.new_token < deleted_token:
                yield "INV3", f"came back with token {e.new_token} after {deleted_token} (entry {e.n})"
        else:
            known = last is None or (e.old_status, e.old_token, e.old_attempts) == last
            if not known:
                yield "AUDIT", f"was changed unseen before entry {e.n}: {last} became {e.old_status}, {e.old_token}"
        if e.op == "DELETE":
            deleted_token = e.old_token
            if e.old_status not in TERMINAL:
                yield "INV8", f"was deleted while {e.old_status} (entry {e.n})"
        if e.op == "UPDATE":
            yield from _of_an_update(e)
        last = None if e.op == "DELETE" else (e.new_status, e.new_token, e.new_attempts)


def _of_an_update(e: Any) -> Iterator[tuple[str, str]]:
    step = f"{e.old_status} -> {e.new_status} (entry {e.n})"
    tokens, attempts = f"token {e.old_token} -> {e.new_token}", f"attempts {e.old_attempts} -> {e.new_attempts}"
    redrive = e.old_status in {"dead", "cancelled"} and e.new_status == "pending"
    if e.old_status in TERMINAL and not redrive:
        yield "INV2", f"was changed after its end: {step}"
        if e.new_status in TERMINAL:
            yield "INV4", f"ended twice: {step}"
    if (e.old_status, e.new_status) not in ALLOWED:
        yield "TRANSITION", f"went {step}"
    if e.new_attempts > e.new_max:
        yield "INV3", f"used attempt {e.new_attempts} of {e.new_max}: {step}"
    if e.new_status == "leased" and (e.old_status != "leased" or e.new_token != e.old_token):
        if e.new_token != e.old_token + 1:
            yield "INV3", f"was claimed with {tokens}: {step}"
        if e.new_attempts != e.old_attempts + 1:
            yield "INV3", f"was claimed with {attempts}: {step}"
        if e.old_status == "leased" and e.held:
            yield "STEAL", f"was taken at {e.at}, its lease ran until {e.old_until}: {step}"
        return
    if e.new_token != e.old_token:
        yield "INV3", f"got another token without a claim, {tokens}: {step}"
    given_back = e.old_status == "leased" and e.new_status == "pending" and e.new_attempts == e.old_attempts - 1
    if redrive:
        if e.new_attempts != 0:
            yield "INV2", f"was redriven with {attempts}: {step}"
    elif e.new_attempts != e.old_attempts and not given_back:
        yield "INV3", f"got {attempts} without a claim: {step}"
