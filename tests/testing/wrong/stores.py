"""Checkpoint stores that break rules."""

from __future__ import annotations

from sqlalchemy import text

from runqueue import hookimpl
from runqueue.testing import CheckpointStoreSuite

NEWEST = "test_the_newest_state_is_the_next_attempts"
SAME = "test_a_state_comes_back_as_it_was"
OWN = "test_runs_have_their_own_states"
ZOMBIE = "test_a_zombie_leaves_nothing"
KILLED = "test_a_state_survives_a_killed_worker"
LARGE = "test_a_state_may_be_as_large_as_the_limit"

TABLE = "create table if not exists public.kept (n bigint generated always as identity, run_id uuid, state text)"
LOAD = """select distinct on (run_id) run_id, state from public.kept
          where run_id = any(:ids) order by run_id, n desc"""


class Kept:
    """Right: a table of its own, in the transaction that it is given."""

    limit = 100_000
    load_sql = LOAD

    @hookimpl
    def runqueue_checkpoint_store(self):
        return self

    def save(self, connection, lease, state):
        connection.execute(text(TABLE))
        statement = text("insert into public.kept (run_id, state) values (:id, :state)")
        connection.execute(statement, {"id": lease.run_id, "state": state})

    def load(self, connection, run_ids):
        if connection.execute(text("select to_regclass('public.kept')")).scalar() is None:
            return {}
        rows = connection.execute(text(self.load_sql), {"ids": list(run_ids)})
        return {row.run_id: row.state for row in rows}


class TestKept(CheckpointStoreSuite):
    plugins = (Kept(),)
    fails = ()


class Outside(Kept):
    """On a connection of its own."""

    def save(self, connection, lease, state):
        with connection.engine.begin() as own:
            super().save(own, lease, state)


class TestOutside(CheckpointStoreSuite):
    plugins = (Outside(),)
    fails = (ZOMBIE, KILLED)


class InMemory(Kept):
    """In the memory of the process."""

    def __init__(self):
        self.states = {}

    def save(self, connection, lease, state):
        self.states[lease.run_id] = state

    def load(self, connection, run_ids):
        return {x: self.states[x] for x in run_ids if x in self.states}


class TestInMemory(CheckpointStoreSuite):
    plugins = (InMemory(),)
    fails = (ZOMBIE, KILLED)


class Oldest(Kept):
    load_sql = LOAD.replace("desc", "")


class TestOldest(CheckpointStoreSuite):
    plugins = (Oldest(),)
    fails = (NEWEST,)


class Mixed(Kept):
    """The newest state of any run."""

    def load(self, connection, run_ids):
        found = super().load(connection, run_ids)
        return dict.fromkeys(run_ids, max(found.values())) if found else {}


class TestMixed(CheckpointStoreSuite):
    plugins = (Mixed(),)
    fails = (OWN,)


class Lossy(Kept):
    def save(self, connection, lease, state):
        super().save(connection, lease, state.encode("ascii", "replace").decode())


class TestLossy(CheckpointStoreSuite):
    plugins = (Lossy(),)
    fails = (SAME,)


class Short(Kept):
    """Cuts what it said it could keep."""

    def save(self, connection, lease, state):
        super().save(connection, lease, state[:5000])


class TestShort(CheckpointStoreSuite):
    plugins = (Short(),)
    fails = (LARGE,)
