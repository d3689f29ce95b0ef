"""What the bundled order and tenant policy cost: the batch, not the tenants, the backlog, or what is due later."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from support.plans import explain

from runqueue.core import Core
from runqueue.schema.tables import tables
from runqueue.statements.claim import claim
from runqueue.statements.turns import turns

T = tables("runqueue")
KINDS = [f"kind-{n}" for n in range(5)]
LANES = {"queues": ["default"], "kinds": KINDS[:1], "deadlines": [None], "on_lost": ["retry"]}
CLAIM = {**LANES, "lease": 45.0, "worker": "w", "retry_base": 5.0, "retry_cap": 300.0}
LEVELS = 6
PKEY, ORDER, WALK, TENANT, FLYING = (
    "agent_runs_pkey",
    "agent_runs_claim_idx",
    "agent_runs_walk_idx",
    "agent_runs_tenant_idx",
    "agent_runs_flying_idx",
)
SMALL = {"agent_run_pauses", "agent_run_rules", "agent_run_tenants"}

MANY_TENANTS = """
insert into runqueue.agent_runs (id, tenant_id, kind, priority, available_at)
select ('00000000-0000-7000-a000-' || lpad(to_hex(n), 12, '0'))::uuid, 'many-' || lpad((n % 10000)::text, 5, '0'),
       'kind-0', n % 3, now() - interval '1 hour'
from generate_series(1, {many}) n
union all
select ('00000000-0000-7000-b000-' || lpad(to_hex(n), 12, '0'))::uuid, 'whale', 'kind-0', 9, now() - interval '2 hours'
from generate_series(1, {whale}) n
"""
"""Ten thousand tenants, and one with a backlog of a higher priority in front of all of them."""


@pytest.fixture(autouse=True)
def undone(world):
    yield
    world.rollback()


@pytest.fixture
def measure(world):
    def measure(statement, parameters, *, indexes, rows, buffers, returned):
        for generic in (False, True):
            found = explain(world, statement, parameters, generic=generic)
            print(f"{generic=}, {found.returned} returned, {found.rows} rows, {found.buffers} buffers\n{found}")
            assert found.returned == returned
            assert {x for x in found.indexes if x.startswith("agent_runs_")} <= indexes
            assert found.whole_tables <= SMALL
            assert found.rows <= rows
            assert found.buffers <= buffers

    return measure


@pytest.mark.parametrize("batch", [1, 20, 100])
def test_an_aged_claim_costs_its_batch(measure, batch):
    """Runs that are due later, 25,000 of each of four priorities where it is crowded, are not read."""
    ctx = Core.build("runqueue", "reaper", ["aging"], None).ctx
    statement = claim(T, ctx.order, ctx.policy.arms(), any_kind=False)
    rows = LEVELS * 3 + 2 * batch * LEVELS + 4 * batch
    measure(
        statement, {**CLAIM, "batch": batch},
        indexes={ORDER, PKEY}, rows=rows, buffers=150 + 10 * LEVELS + 12 * batch * LEVELS + 24 * batch, returned=batch,
    )  # fmt: skip


SIZES = [(20_000, 30_000), pytest.param((100_000, 500_000), marks=pytest.mark.slow)]


@pytest.fixture(params=SIZES, ids=["small", "large"])
def tenants(request, world):
    many, whale = request.param
    for index in Core.build("runqueue", "reaper", ["fairness"], None).indexes():
        index.create(world)
    world.execute(text(MANY_TENANTS.format(many=many, whale=whale)))


@pytest.mark.parametrize("batch", [20, 100])
@pytest.mark.parametrize("capped", [False, True], ids=["no caps", "whale capped"])
def test_a_claim_in_turns_costs_its_batch(measure, world, tenants, batch, capped):
    ctx = Core.build("runqueue", "reaper", ["fairness"], None).ctx
    cap = text("insert into runqueue.agent_run_tenants (tenant_id, cap) values ('whale', :cap)")
    world.execute(cap, {"cap": 0 if capped else 5})
    walk = {**LANES, "batch": batch, "steps": 1000, "after": "many-09990", "revolution": 0, "credit": 0}
    measure(
        turns(T, ctx.tenants, any_kind=False), walk,
        indexes={WALK, FLYING}, rows=12 * batch + 100, buffers=100 + 12 * batch, returned=batch,
    )  # fmt: skip
    names = [f"many-{n:05}" for n in range(batch - 1)] + ["whale"]
    served = batch - 1 if capped else batch
    given = {"tenants": names[:served], "quotas": [1] * served, "locked": [False] * (served - 1) + [True]}
    measure(
        claim(T, ctx.order, ctx.policy.arms(), any_kind=False, tenants=ctx.tenants), {**CLAIM, "batch": batch, **given},
        indexes={TENANT, FLYING, PKEY}, rows=12 * batch, buffers=100 + 45 * batch, returned=served,
    )  # fmt: skip
