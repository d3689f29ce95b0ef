"""Every statement of the hot path: which indexes serve it, and how much it looks at, whatever the statistics say.

Bounds follow the batch, never the table: 50,000 runs and, where it is crowded, 300,000 in front of them.
"""

from __future__ import annotations

from uuid import UUID

import pytest
from sqlalchemy import text
from support.plans import explain

from runqueue.core import Core
from runqueue.schema.tables import tables
from runqueue.statements import expiry, finish, journal, lease
from runqueue.statements.claim import claim
from runqueue.types import RunStatus

T = tables("runqueue")
KINDS = [f"kind-{n}" for n in range(5)]
LEASED, EXPIRED = 2000, 500
LEVELS = 6
RETRY = {"retry_base": 5.0, "retry_cap": 300.0}
PKEY, CLAIM, LEASES, EXPIRY = (
    "agent_runs_pkey",
    "agent_runs_claim_idx",
    "agent_runs_leased_idx",
    "agent_runs_expiry_idx",
)
SMALL = {"agent_run_pauses"}
"""Has no row here, and is read as a whole if the planner likes."""


@pytest.fixture(autouse=True)
def undone(world):
    yield
    world.rollback()


@pytest.fixture
def plan(world, request):
    """Executes a statement, with a plan of its own and with the generic one, and checks what holds for all."""

    def plan(statement, parameters, *, indexes, rows, buffers, returned):
        for generic in (False, True):
            if not generic and is_read_as_a_whole(world, request.node.name, parameters):
                continue
            found = explain(world, statement, parameters, generic=generic)
            of_runs = {x for x in found.indexes if x.startswith("agent_runs_")}
            print(f"{generic=}, {found.returned} returned, {found.rows} rows, {found.buffers} buffers\n{found}")
            assert found.returned == returned
            assert of_runs <= indexes
            assert found.whole_tables <= SMALL
            assert found.rows <= rows
            assert found.buffers <= buffers

    return plan


def is_read_as_a_whole(world, name, parameters):
    """Before PostgreSQL 17 one scan of a table without statistics seems cheaper than hundreds of look-ups."""
    most = max((len(x) for x in parameters.values() if isinstance(x, list)), default=0)
    return world.dialect.server_version_info < (17,) and "missing" in name and most >= 500


@pytest.fixture
def held(world):
    ids = "select id from runqueue.agent_runs where status = 'leased' and locked_until > now() order by md5(id::text)"
    return world.execute(text(ids)).scalars().all()


def claiming(policy, kinds, batch):
    ctx = Core.build("runqueue", policy, (), None).ctx
    parameters = {"queues": ["default"], "batch": batch, "lease": 45.0, "worker": "w", **RETRY}
    if kinds is not None:
        parameters |= {"kinds": kinds, "deadlines": [None] * len(kinds), "on_lost": ["retry"] * len(kinds)}
    return claim(T, ctx.order, ctx.policy.arms(), any_kind=kinds is None), parameters


def bounds(lanes, batch):
    """A lane gives at most a batch, a level costs a probe; each run taken is looked up once more."""
    rows = lanes * (batch + 2 * LEVELS) + 2 * batch
    return {"rows": rows, "buffers": 100 + 8 * lanes * LEVELS + 6 * lanes * batch + 24 * batch}


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS, None], ids=["one kind", "five kinds", "any kind"])
def test_claim_of_pending_runs_costs_its_batch(plan, kinds, batch):
    limits = bounds(6 if kinds is None else len(kinds), batch)
    plan(*claiming("reaper", kinds, batch), indexes={CLAIM, PKEY}, **limits, returned=batch)


@pytest.mark.parametrize("batch", [1, 100])
@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS, None], ids=["one kind", "five kinds", "any kind"])
def test_takeover_of_expired_leases_costs_its_batch(plan, kinds, batch):
    limits = bounds(6 if kinds is None else len(kinds), batch)
    indexes = {EXPIRY, PKEY} if kinds else {EXPIRY, CLAIM, PKEY}
    plan(*claiming("takeover", kinds, batch), indexes=indexes, **limits, returned=batch)


@pytest.mark.parametrize("kinds", [KINDS, None], ids=["five kinds", "any kind"])
def test_takeover_goes_on_to_pending_runs_at_the_same_cost(plan, kinds):
    batch = EXPIRED + 20
    limits = bounds(6 if kinds is None else 5, batch)
    plan(*claiming("takeover", kinds, batch), indexes={EXPIRY, CLAIM, PKEY}, **limits, returned=batch)


@pytest.mark.parametrize("policy", ["reaper", "takeover"])
def test_claim_that_finds_nothing_costs_next_to_nothing(plan, policy):
    plan(*claiming(policy, ["no such kind"], 100), indexes={CLAIM, EXPIRY, PKEY}, rows=5, buffers=50, returned=0)


@pytest.mark.parametrize("batch", [100, 500])
def test_heartbeat_looks_up_its_leases(plan, held, batch):
    parameters = {"ids": held[:batch], "tokens": [1] * batch, "lease": 45.0}
    plan(lease.heartbeat(T), parameters, indexes={PKEY}, rows=8 * batch, buffers=30 * batch, returned=batch)


@pytest.mark.parametrize("batch", [100, 500])
def test_complete_looks_up_its_leases(plan, held, batch):
    parameters = {"ids": held[:batch], "tokens": [1] * batch, "results": ['{"answer": 42}'] * batch}
    plan(finish.complete(T), parameters, indexes={PKEY}, rows=5 * batch, buffers=25 * batch, returned=batch)


def test_a_repeated_complete_looks_up_its_leases(plan, held):
    parameters = {"ids": held[:500], "tokens": [1] * 500}
    plan(finish.settled(T), parameters, indexes={PKEY}, rows=2000, buffers=3000, returned=500)


@pytest.mark.parametrize("statement", [finish.hold(T), journal.fence_only(T)], ids=["hold", "fence"])
def test_the_fence_is_a_probe(plan, held, statement):
    plan(statement, {"run_id": held[0], "token": 1}, indexes={PKEY}, rows=1, buffers=15, returned=1)


@pytest.mark.parametrize("target", [RunStatus.PENDING, RunStatus.DEAD])
def test_settle_is_a_probe(plan, held, target):
    parameters = {"run_id": held[0], "token": 1, "given_back": 0, "error_code": "E", "error_message": "text"}
    parameters |= {"type": "run.failed", "data": "{}"} | ({} if target.terminal else {"delay": 0.0})
    plan(finish.settle(T, target), parameters, indexes={PKEY}, rows=1, buffers=120, returned=1)


def test_a_fenced_write_is_a_probe(plan, held):
    parameters = {"run_id": held[0], "token": 1, "event_count": 2, "types": ["a", "b"], "data": ["{}", "{}"]}
    parameters |= {"saves": 1, "checkpoint": "{}", "kept": 3, "spent": 1.5}
    plan(journal.fence_and_write(T), parameters, indexes={PKEY}, rows=1, buffers=60, returned=1)


@pytest.mark.parametrize("only_ending", [False, True], ids=["reaper", "takeover"])
@pytest.mark.parametrize("with_index", [False, True], ids=["own indexes", "takeover's index"])
def test_a_sweep_looks_at_leases_only(plan, world, only_ending, with_index):
    if not with_index:
        world.execute(text(f"drop index runqueue.{EXPIRY}"))
    parameters = {"after": UUID(int=0), "batch": EXPIRED, **RETRY}
    indexes = {LEASES, EXPIRY, PKEY} if with_index else {LEASES, PKEY}
    limits = {"rows": 6 * LEASED, "buffers": 12000, "returned": 0 if only_ending else EXPIRED}
    plan(expiry.sweep(T, only_ending=only_ending), parameters, indexes=indexes, **limits)
