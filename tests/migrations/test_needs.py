"""What a policy and a set of plugins need in the database: made, repaired, and told where nobody needs it any more."""

from __future__ import annotations

import pytest
from sqlalchemy import NullPool, create_engine, text

from runqueue import RunQueue
from runqueue.schema import migrate
from runqueue.schema.indexes import index_state

LANGGRAPH = "runqueue_migrations:langgraph"


@pytest.fixture
def engine(blank_url):
    return create_engine(blank_url, poolclass=NullPool)


@pytest.fixture
def needs(engine):
    def needs(claim="reaper", plugins=(), make=False):
        queue = RunQueue(engine, claim=claim, plugins=plugins)
        wants = {"indexes": queue.core.indexes(), "migrations": queue.core.migrations()}
        queue.close()
        if make:
            migrate.upgrade(engine, **wants)
        with engine.connect() as connection:
            return migrate.needs(connection, **wants)

    return needs


def test_what_is_configured_is_made_and_then_nothing_is_needed(needs):
    empty = needs("takeover", ["fairness", "langgraph"])
    assert {str(x.name) for x in empty.missing} >= {"agent_runs_claim_idx", "agent_runs_expiry_idx"}
    assert empty.undone == (LANGGRAPH,)
    assert any("agent_runs_expiry_idx" in x for x in empty.to_make)
    made = needs("takeover", ["fairness", "langgraph"], make=True)
    assert (made.to_make, made.to_drop) == ([], [])


def test_what_another_configuration_left_is_told(needs):
    needs("takeover", ["fairness", "langgraph"], make=True)
    left = needs("reaper")
    assert left.to_make == []
    assert "agent_runs_expiry_idx" in left.unneeded
    assert "agent_runs_tenant_idx" in left.unneeded
    assert left.others == ("runqueue_langgraph",)
    assert "the tables of the migrations 'runqueue_langgraph'" in left.to_drop
    assert "agent_runs_expiry_idx" not in needs("takeover").unneeded


def test_an_index_of_ones_own_is_told_and_indexes_of_constraints_and_partitions_are_not(needs, engine):
    needs(make=True)
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "create index mine on runqueue.agent_runs (created_at); "
            "create table runqueue.elsewhere (id int); create index theirs on runqueue.elsewhere (id); "
            "create table runqueue.agent_runs_history_p0 partition of runqueue.agent_runs_history "
            "for values from ('2020-01-01') to ('2020-02-01')"
        )
    assert needs().unneeded == ("mine",)


def test_an_index_of_the_tables_own_that_was_dropped_is_made_again(needs, engine):
    needs(make=True)
    with engine.begin() as connection:
        connection.execute(text("drop index runqueue.agent_runs_claim_idx"))
    assert [x.name for x in needs().missing] == ["agent_runs_claim_idx"]
    assert needs(make=True).to_make == []
    with engine.connect() as connection:
        assert index_state(connection, "runqueue", "agent_runs_claim_idx") is True
