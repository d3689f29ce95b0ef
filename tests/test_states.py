"""The table of states is the contract's, and whoever moves a run keeps to it."""

from __future__ import annotations

import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from runqueue.schema.tables import RUN_CHECKS, tables
from runqueue.states import TERMINAL, TRANSITIONS, RunStatus

CONTRACT = """
          -> pending     enqueue
pending   -> leased      claim
leased    -> leased      heartbeat
leased    -> done        complete
leased    -> pending     fail
leased    -> dead        fail
leased    -> cancelled   fail
leased    -> pending     release
leased    -> cancelled   release
leased    -> pending     reap
leased    -> dead        reap
leased    -> cancelled   reap
leased    -> leased      claim
leased    -> dead        claim
leased    -> cancelled   claim
pending   -> cancelled   cancel
leased    -> cancelled   settle_cancelled
dead      -> pending     retry
cancelled -> pending     retry
"""
"""Expiry is `reap`, or `claim` under the policy that takes expired leases."""


def test_the_table_is_the_contracts():
    stated = set()
    for line in CONTRACT.strip("\n").splitlines():
        source, rest = line.split("->")
        target, verb = rest.split()
        stated.add((source.strip() or None, target, verb))
    table = {(x.source.value if x.source else None, x.target.value, x.verb) for x in TRANSITIONS}
    assert table == stated
    assert len(TRANSITIONS) == len(stated), "no move is listed twice"


def test_only_an_operators_retry_leaves_an_end():
    assert {x.verb for x in TRANSITIONS if x.source in TERMINAL} == {"retry"}
    assert not [x for x in TRANSITIONS if x.source is RunStatus.DONE]


def test_every_state_can_be_reached_and_every_other_can_be_left():
    assert {x.target for x in TRANSITIONS} == set(RunStatus)
    assert {x.source for x in TRANSITIONS} >= set(RunStatus) - TERMINAL


def test_the_ends_are_those_of_the_schema():
    assert {x for x in RunStatus if x.terminal} == set(TERMINAL)
    words = RUN_CHECKS["finished"]
    assert all((f"'{x.value}'" in words) == x.terminal for x in RunStatus)
    assert all(f"'{x.value}'" in RUN_CHECKS["status"] for x in RunStatus)


def test_the_audit_of_the_tests_allows_what_the_table_allows():
    from runqueue.testing.audit import ALLOWED

    moves = {(x.source.value, x.target.value) for x in TRANSITIONS if x.source is not None}
    assert moves | {("pending", "pending")} == ALLOWED


@pytest.mark.parametrize("target", RunStatus)
def test_a_lease_is_settled_as_the_table_says(target):
    from runqueue.statements.finish import settle

    words = str(settle(tables("runqueue"), target).compile(dialect=PGDialect_psycopg()))
    assert f"SET status='{target.value}'" in words.replace("status = '", "status='")
