"""What every claim policy must keep."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import create_engine, text

from runqueue.errors import LeaseLost
from runqueue.queue import RunQueue
from runqueue.testing.rig import Rig, ids, together
from runqueue.testing.suite import PluginSuite
from runqueue.types import ClaimedRun

KINDS = ("alpha", "beta", "gamma")
HOSTILE = {
    "no nested loops": "-c enable_nestloop=off",
    "no index scans": "-c enable_indexscan=off -c enable_bitmapscan=off -c enable_indexonlyscan=off",
    "no hash, no merge": "-c enable_hashjoin=off -c enable_mergejoin=off -c enable_material=off",
    "generic plans": "-c plan_cache_mode=force_generic_plan",
    "in parallel": "-c debug_parallel_query=on -c force_parallel_mode=on",
    "no sorts": "-c enable_sort=off -c enable_hashagg=off -c enable_incremental_sort=off",
}
"""Settings of the planner that make it choose what it never would."""

LEASES = """
insert into runqueue.agent_runs (id, tenant_id, kind, status, attempts, fencing_token, locked_by, locked_until)
select gen_random_uuid(), 'crowd', 'alpha', 'leased', 1, 1, 'others', now() + interval '1 day'
from generate_series(1, 8000)
"""
ROWS, BUFFERS = 500, 1500


class ClaimPolicySuite(PluginSuite):
    """A claim policy takes due and lost runs, each once, and nothing else. Say which: `claim = "mine"`."""

    # -------------------------------------------------------------------------------------------- what a claim takes

    def test_no_run_is_claimed_twice(self, rig: Rig) -> None:
        """Four claimers at once get every due run, and each run once."""
        made = rig.fill(240, kind=lambda n: KINDS[n % 3])
        queues = [rig.another() for _ in range(4)]
        taken = [x for batches in together(4, lambda n: rig.take(queues[n], limit=7)) for y in batches for x in y]
        taken += [x for batch in rig.take(rig.queue) for x in batch]
        assert len(taken) == len(set(ids(taken))), "a run was claimed twice"
        assert set(ids(taken)) == {x.id for x in made}, "a run was left"
        for claimed in taken[:10]:
            rig.queue.complete(claimed.lease)

    def test_a_run_that_is_not_due_is_not_claimed(self, rig: Rig) -> None:
        """Neither one that was scheduled, nor one that waits for its retry, nor one that was given back for later."""
        rig.fill(5, delay=3600, priority=9)
        rig.fill(2)
        failed, released = rig.queue.claim("w", limit=2)
        rig.queue.fail(failed.lease, "later", delay=3600)
        rig.queue.release(released.lease, delay=3600)
        assert rig.rescue(rig.queue) == []

    def test_other_queues_and_kinds_are_left(self, rig: Rig) -> None:
        """A claim takes the queues and kinds that it names, of pending and of lost runs."""
        rig.fill(9, kind=lambda n: KINDS[n % 3], queue=lambda n: "abc"[n // 3])
        lost = rig.queue.claim("w", queues=["a", "b", "c"], limit=9)
        rig.faults.expire(*(x.lease for x in lost))
        rig.fill(9, kind=lambda n: KINDS[n % 3], queue=lambda n: "abc"[n // 3])
        got = rig.rescue(rig.queue, queues=["a", "b"], kinds=["beta", "unknown"])
        assert sorted((x.run.queue, x.run.kind) for x in got) == [("a", "beta")] * 2 + [("b", "beta")] * 2
        assert {x.run.queue for x in rig.rescue(rig.queue, queues=["c"])} == {"c"}

    def test_a_paused_lane_gives_nothing(self, rig: Rig) -> None:
        """Neither pending nor lost runs, until it is resumed."""
        lanes: dict[str, Any] = {"queues": ["a", "b"]}
        rig.fill(4, kind=lambda n: KINDS[n % 2], queue=lambda n: "ab"[n // 2])
        rig.faults.expire(*(x.lease for x in rig.queue.claim("w", limit=9, **lanes)))
        rig.fill(4, kind=lambda n: KINDS[n % 2], queue=lambda n: "ab"[n // 2])
        rig.queue.pause("a")
        rig.queue.pause("b", "beta")
        open_ones = rig.rescue(rig.queue, **lanes)
        assert [(x.run.queue, x.run.kind) for x in open_ones] == [("b", "alpha")] * 2
        rig.queue.resume("a")
        rig.queue.resume("b", "beta")
        assert len(rig.rescue(rig.queue, **lanes)) == 6

    def test_a_claim_keeps_its_limit(self, rig: Rig) -> None:
        """Over several kinds, pending and lost runs, whatever plan the server chooses; and it returns all it leased."""
        rig.fill(24, kind=lambda n: KINDS[n % 3])
        lost = rig.queue.claim("w", limit=12)
        rig.faults.expire(*(x.lease for x in lost))
        rig.queue.reap(limit=6)
        for what, options in HOSTILE.items():
            engine = _hostile(rig, options)
            queue = RunQueue.over(rig.queue.core, engine)
            claimed = queue.claim(what, kinds=KINDS, limit=4)
            engine.dispose()
            leased = rig.sql("select id from runqueue.agent_runs where locked_by = :name", name=what)
            assert len(claimed) <= 4, what
            assert {row.id for row in leased} == set(ids(claimed)), what
            for one in claimed:
                rig.queue.release(one.lease)

    def test_a_locked_run_holds_up_nobody(self, rig: Rig) -> None:
        """A claim and a sweep pass over what another transaction has locked, and take the others."""
        rig.fill(6)
        lost = rig.queue.claim("w", limit=3)
        rig.faults.expire(*(x.lease for x in lost))
        held = [rig.sql("select id from runqueue.agent_runs where status = 'pending' limit 1")[0].id, lost[0].run.id]
        with rig.engine.begin() as connection:
            connection.execute(text("select 1 from runqueue.agent_runs where id = any(:ids) for update"), {"ids": held})
            got = rig.rescue(rig.queue)
        assert len(got) == 4
        assert not set(held) & set(ids(got))

    def test_a_claim_costs_its_batch(self, rig: Rig) -> None:
        """However many runs others have leased: what a claim looks at is bounded."""
        rig.load(LEASES)
        rig.fill(40)
        for plan in (x for pair in rig.plans(rig.another(), limit=10, kinds=KINDS) for x in pair):
            assert plan.rows <= ROWS, f"{plan.rows} rows were looked at:\n{plan}"
            assert plan.buffers <= BUFFERS, f"{plan.buffers} buffers were looked at:\n{plan}"

    # ------------------------------------------------------------------------------------------ what becomes of leases

    def test_a_running_run_is_left_alone(self, rig: Rig) -> None:
        """Neither claimed nor swept while its lease lasts, though it was asked to stop or is in its last attempt."""
        rig.fill(5, max_attempts=lambda n: 1 + n % 2)
        leases = [x.lease for x in rig.queue.claim("w", limit=5)]
        rig.queue.cancel(leases[0].run_id)
        assert rig.rescue(rig.another()) == []
        assert [x.renewed for x in rig.queue.heartbeat(leases)] == [True] * 5

    def test_a_lost_run_comes_back(self, rig: Rig) -> None:
        """All of them, to whoever claims next, each once, with one more attempt and a newer token."""
        made = rig.fill(10, kind=lambda n: KINDS[n % 3])
        rig.faults.expire(*(x.lease for x in rig.queue.claim("lost", limit=10)))
        got = rig.rescue(rig.another())
        assert sorted(ids(got)) == sorted(x.id for x in made)
        assert {(x.run.attempts, x.run.fencing_token, x.run.locked_by) for x in got} == {(2, 2, "rescuer")}

    def test_a_lost_run_waits_its_backoff(self, rig: Rig) -> None:
        """It is not claimed again before `retry_base` has passed since its last heartbeat."""
        rig.fill(3)
        slow = rig.another(retry_base=600, retry_cap=600)
        lost = slow.claim("w", limit=3)
        rig.faults.expire(*(x.lease for x in lost), backoff=True)
        assert rig.rescue(slow) == []

    def test_a_lost_run_without_attempts_left_ends_dead(self, rig: Rig) -> None:
        """And nobody gets it again."""
        rig.fill(3, max_attempts=1)
        self._ends(rig, rig.queue.claim("w", limit=3), "dead")

    def test_a_lost_run_that_may_not_be_repeated_ends_dead(self, rig: Rig) -> None:
        """Its handler was registered with `on_lost="fail"`."""
        rig.queue.handler("once", on_lost="fail")(print)
        rig.fill(3, kind="once")
        self._ends(rig, rig.queue.claim("w", kinds=["once"], limit=3), "dead")

    def test_a_lost_run_that_was_asked_to_stop_ends_cancelled(self, rig: Rig) -> None:
        """Also in its last attempt."""
        rig.fill(3, max_attempts=lambda n: 1 + n)
        claimed = rig.queue.claim("w", limit=3)
        for one in claimed:
            rig.queue.cancel(one.run.id)
        self._ends(rig, claimed, "cancelled")

    def test_a_stale_lease_cannot_write(self, rig: Rig) -> None:
        """Whoever had the run before hears that it is lost, whatever it tries."""
        rig.fill(1)
        [stale] = rig.queue.claim("zombie")
        rig.faults.expire(stale.lease)
        [newest] = rig.rescue(rig.another())
        for write in (rig.queue.complete, lambda x: rig.queue.fail(x, "late"), rig.queue.release):
            with pytest.raises(LeaseLost):
                write(stale.lease)
        with pytest.raises(LeaseLost), rig.queue.transaction(stale.lease) as tx:
            tx.emit("late")
        [heard] = rig.queue.heartbeat([stale.lease])
        assert heard.lost
        rig.queue.complete(newest.lease, "kept")
        assert rig.queue.get(newest.run.id).result == "kept"

    def test_a_killed_worker_loses_no_run(self, rig: Rig) -> None:
        """SIGKILL in a handler; once the lease has ended, the next worker gets the run."""
        [run] = rig.fill(1, kind="victim")
        rig.faults.kill_worker(self, "handler")
        assert rig.status(run) == "leased"
        rig.faults.expire(rig.lease_of(run))
        [again] = rig.rescue(rig.queue, kinds=["victim"])
        assert again.run.attempts == 2

    # ------------------------------------------------------------------------------------------------------ the sweep

    def test_a_sweep_keeps_its_limit(self, rig: Rig) -> None:
        """So many at most, one after the other, until all is swept; and it says truly what became of them."""
        made = rig.fill(7, max_attempts=1)
        rig.faults.expire(*(x.lease for x in rig.queue.claim("w", limit=7)))
        assert [rig.queue.reap(limit=3).dead for _ in range(4)] == [3, 3, 1, 0]
        assert {rig.status(x) for x in made} == {"dead"}

    def test_a_sweep_begins_where_it_is_told(self, rig: Rig) -> None:
        """`after` is a run's id, and only runs with a higher one are moved: so a run that cannot be is passed by."""
        made = sorted(x.id for x in rig.fill(4, max_attempts=1))
        rig.faults.expire(*(x.lease for x in rig.queue.claim("w", limit=4)))
        ctx = rig.queue.core.ctx
        parameters = {"after": made[1], "batch": 1, "retry_base": 0.0, "retry_cap": 0.0}
        with rig.engine.begin() as connection:
            rows = connection.execute(ctx.policy.sweep(ctx.t), parameters).all()
        assert [(row.id, row.status) for row in rows] == [(made[2], "dead")]

    def _ends(self, rig: Rig, lost: list[ClaimedRun], status: str) -> None:
        """A claim hands none of them out; after a sweep, or the claim itself, they have ended."""
        rig.faults.expire(*(x.lease for x in lost))
        assert len(lost) == 3
        assert rig.another().claim("next", limit=10) == []
        rig.queue.reap()
        assert {rig.status(x.run) for x in lost} == {status}
        assert rig.rescue(rig.another()) == []


def _hostile(rig: Rig, options: str) -> Any:
    known = {row[0] for row in rig.sql("select name from pg_settings")}
    words = [x for x in options.split("-c ") if x.partition("=")[0].strip() in known]
    told = " ".join(f"-c {x.strip()}" for x in words)
    return create_engine(rig.url, connect_args={"options": told, "application_name": "runqueue"})
