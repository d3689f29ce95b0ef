"""The audit finds each planted bug, and says nothing of a run that went by the rules."""

from __future__ import annotations

import re
from uuid import uuid4

import pytest
from sqlalchemy import text

from runqueue.testing import audit

pytestmark = pytest.mark.audit(off=True)

RUNS = "runqueue.agent_runs"
CLAIM = "status='leased', attempts=attempts+1, fencing_token=fencing_token+1, locked_by='w', locked_until=now()+'1 min'"
IDLE = "locked_by=null, locked_until=null"
END = f"{IDLE}, finished_at=now(), settled_token=fencing_token"


class History:
    """One run, and what is done to it, as raw SQL."""

    def __init__(self, connection):
        self.connection = connection
        self.id = uuid4()
        self("insert into runqueue.agent_runs (id, tenant_id, kind) values (:id, 't', 'k')")

    def __call__(self, statement, **values):
        self.connection.execute(text(statement), {"id": self.id, **values})

    def set(self, *changes):
        for change in changes:
            self(f"update {RUNS} set {change} where id = :id")

    def event(self, *numbers):
        for seq in numbers:
            self("insert into runqueue.agent_run_events (run_id, seq, type) values (:id, :seq, 'x')", seq=seq)

    def lawless(self):
        """Without the table's CHECKs, which forbid some bugs before the audit sees them."""
        names = f"select conname from pg_constraint where conrelid = '{RUNS}'::regclass and contype = 'c'"
        for name in self.connection.execute(text(names)).scalars().all():
            self(f'alter table {RUNS} drop constraint "{name}"')

    def found(self):
        return list(audit.violations(self.connection))

    def only(self, *invariants):
        """The invariants that are broken, and no others; returns the sentences."""
        found = self.found()
        assert {x.split(":")[0] for x in found} == set(invariants), found
        with pytest.raises(AssertionError, match=re.escape(found[0])):
            audit.check(self.connection)
        audit.check(self.connection, skip=invariants)
        return found


@pytest.fixture
def run(engine):
    with engine.begin() as connection:
        yield History(connection)


def test_lawful_lives(run):
    run.set(CLAIM, "locked_until=now()+'2 min'", f"status='pending', {IDLE}")  # heartbeat, failed
    run.set(CLAIM, f"status='pending', attempts=attempts-1, {IDLE}")  # given back
    run.set(CLAIM, "cancel_requested_at=now()", f"status='cancelled', {END}")
    run.set("status='pending', attempts=0, finished_at=null")  # redriven
    run.set(CLAIM, "locked_until=now()-interval '1 s'", CLAIM)  # taken over
    run.set(f"status='dead', {END}", "status='pending', attempts=0, finished_at=null", f"status='cancelled', {END}")
    run.set("status='pending', attempts=0, finished_at=null", "available_at=now(), priority=3", CLAIM)
    run.set("event_seq=event_seq+2", f"status='done', {END}")
    run.event(1, 2)
    audit.check(run.connection)


def test_a_lawful_archive_and_a_return_from_it(run):
    run.set(CLAIM, f"status='dead', {END}")
    run("create table runqueue.h partition of runqueue.agent_runs_history default")
    columns = "id, tenant_id, kind, status, attempts, fencing_token, settled_token, finished_at"
    rest = (
        "queue, priority, max_attempts, available_at, on_lost, event_seq, checkpoint_seq, created_at, updated_at, spent"
    )
    move = f"with gone as (delete from {{}} where id = :id returning *) insert into {{}} ({columns}, {rest}) "
    run(move.format(RUNS, "runqueue.agent_runs_history") + f"select {columns}, {rest} from gone")
    audit.check(run.connection)
    back = f"select {columns}, {rest} from gone".replace("status,", "'pending',").replace("attempts,", "0,", 1)
    run(move.format("runqueue.agent_runs_history", RUNS) + back.replace("finished_at,", "null,"))
    run.set(CLAIM)
    audit.check(run.connection)


def test_inv1_attempts_are_used_up_and_the_run_waits(run):
    run.lawless()
    run.set("max_attempts=1", CLAIM, f"status='pending', {IDLE}")
    run.only("INV1")


def test_inv1_due_in_a_time_that_will_not_come(run):
    run.set("available_at=now()+interval '200 years'")
    run.only("INV1")
    run.lawless()
    run.set("available_at='infinity'")
    run.only("INV1")


def test_inv1_a_lease_that_never_ends(run):
    run.set(CLAIM)
    run.lawless()
    run.set("locked_until='infinity'")
    run.only("INV1")


def test_inv1_inv5_leased_by_nobody(run):
    run.set(CLAIM)
    run.lawless()
    run.set("locked_until=null")
    run.only("INV1", "INV5")


@pytest.mark.parametrize("change", ["result_json='1'", "updated_at=now()", f"status='dead', {END}"])
def test_inv2_a_finished_run_is_changed(run, change):
    run.set(CLAIM, f"status='done', {END}", change)
    assert run.found()[0].startswith("INV2")
    assert run.found()[0].endswith("(entry 4)")


def test_inv2_a_done_run_is_redriven(run):
    run.set(CLAIM, f"status='done', {END}", "status='pending', attempts=0, finished_at=null")
    run.only("INV2", "INV3", "TRANSITION")


def test_inv2_a_redrive_keeps_attempts(run):
    run.set(CLAIM, f"status='dead', {END}", "status='pending', finished_at=null")
    run.only("INV2")


@pytest.mark.parametrize(
    "change",
    [
        CLAIM.replace("fencing_token+1", "fencing_token+2"),
        CLAIM.replace("fencing_token+1", "fencing_token"),
        CLAIM.replace("attempts+1", "attempts"),
        CLAIM.replace("attempts+1", "attempts+2"),
        "attempts=attempts+1",
        "fencing_token=fencing_token+1",
    ],
)
def test_inv3_a_claim_miscounts(run, change):
    run.set(change)
    run.only("INV3")


@pytest.mark.parametrize(
    "change",
    [
        "attempts=attempts+1",
        f"status='pending', attempts=0, fencing_token=0, settled_token=0, {IDLE}",
        f"status='pending', attempts=attempts+1, {IDLE}",
        f"status='dead', attempts=attempts-1, {END}",
        f"status='dead', fencing_token=fencing_token+1, {END}",
    ],
)
def test_inv3_counts_change_without_a_claim(run, change):
    run.lawless()
    run.set(CLAIM, CLAIM.replace("locked_until=", "locked_until=now()-'1 min'::interval, deadline_at="), change)
    assert any(x.startswith("INV3") and "entry 4" in x for x in run.found())


def test_inv3_more_attempts_than_allowed(run):
    run.lawless()
    run.set("max_attempts=1", CLAIM, "locked_until=now()-interval '1 s'", CLAIM)
    run.only("INV3")


def test_inv3_a_token_starts_again_after_the_archive(run):
    run.set(CLAIM, f"status='dead', {END}")
    run(f"delete from {RUNS} where id = :id")
    run(f"insert into {RUNS} (id, tenant_id, kind) values (:id, 't', 'k')")
    run.only("INV3")


def test_inv4_two_ends(run):
    run.set(CLAIM, f"status='done', {END}", "status='cancelled'")
    run.only("INV2", "INV4", "TRANSITION")


def test_inv4_ended_by_an_older_lease(run):
    run.set(CLAIM, "locked_until=now()-interval '1 s'", CLAIM)
    run.set(f"status='done', {IDLE}, finished_at=now(), settled_token=1")
    run.only("INV4")


@pytest.mark.parametrize("numbers", [(1, 3), (2,), (0, 1), (1, 2, 3), (1,), ()])
def test_inv4_events_with_a_gap_or_not_as_counted(run, numbers):
    run.set("event_seq=2")
    run.event(*numbers)
    run.only("INV4")


@pytest.mark.parametrize(
    "shape",
    [
        "finished_at=now()",
        "locked_by='w'",
        "locked_until=now()",
        f"{CLAIM}, finished_at=now()",
        CLAIM.replace("locked_by='w'", "locked_by=null"),
        "status='cancelled'",
    ],
)
def test_inv5_shape(run, shape):
    run.lawless()
    run.set(shape)
    assert any(x.startswith("INV5") for x in run.found())


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ((), f"status='done', {END}"),
        ((), f"status='dead', {END}"),
        ((CLAIM, f"status='done', {END}"), f"{CLAIM}, finished_at=null"),
        ((CLAIM, f"status='dead', {END}"), f"{CLAIM}, finished_at=null"),
    ],
)
def test_a_transition_that_is_not_in_the_table(run, first, then):
    run.set(*first, then)
    assert any(x.startswith("TRANSITION") for x in run.found())


def test_born_leased(run):
    run("delete from runqueue.agent_runs where id = :id")
    run(f"insert into {RUNS} (id, tenant_id, kind, status, locked_by, locked_until) "
        "values (gen_random_uuid(), 't', 'k', 'leased', 'w', now())")  # fmt: skip
    run.only("TRANSITION", "INV8")


def test_a_lease_is_stolen(run):
    run.set(CLAIM, CLAIM)
    run.only("STEAL")


def test_a_stale_checkpoint(run):
    write = "insert into runqueue.agent_run_checkpoints (run_id, seq, fencing_token) values (:id, :seq, :token)"
    run.set(CLAIM, "locked_until=now()-interval '1 s'", CLAIM)
    run(write, seq=1, token=2)
    audit.check(run.connection)
    run(write, seq=2, token=1)
    run.only("FENCE")


def test_a_checkpoint_of_a_lease_that_was_never_given(run):
    run.set(CLAIM)
    run("insert into runqueue.agent_run_checkpoints (run_id, seq, fencing_token) values (:id, 1, 2)")
    run.only("FENCE")


def test_inv8_an_active_run_is_deleted(run):
    run(f"delete from {RUNS} where id = :id")
    assert len(run.only("INV8")) == 2


def test_inv8_a_finished_run_vanishes(run):
    run.set(CLAIM, f"status='done', {END}")
    run(f"delete from {RUNS} where id = :id")
    assert len(run.only("INV8")) == 1


def test_inv8_a_run_in_two_places(run):
    run("create table runqueue.h partition of runqueue.agent_runs_history default")
    run.set(CLAIM, f"status='done', {END}")
    run(f"insert into runqueue.agent_runs_history select * from {RUNS}")
    run.only("INV8")


def test_inv8_events_of_nobody(run):
    run("insert into runqueue.agent_run_events (run_id, seq, type) values (gen_random_uuid(), 1, 'x')")
    run.only("INV8")


def test_a_change_that_the_audit_did_not_see(run):
    run.set(CLAIM)
    run(f"alter table {RUNS} disable trigger audit")
    run.set("attempts=2")
    run(f"alter table {RUNS} enable trigger audit")
    run.set("priority=1")
    run.only("AUDIT")
