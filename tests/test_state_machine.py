"""Random lives of runs, step by step against a model in plain Python. Workers are told apart by their leases alone."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID, uuid4

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import text

from runqueue import Lease, LeaseLost, RunQueue, Settings

WORKERS = ["w", "w", "v"]
"""Two of them have the same name, as two slots of one process."""

ROUNDS = 4
VERBS = ["complete", "fail", "final", "release", "settle", "write"]

EXPIRE = text(
    "update runqueue.agent_runs set locked_until = clock_timestamp() - interval '1 s', "
    "updated_at = clock_timestamp() - interval '1 h' where id = :id"
)
STATE = text(
    "select id, status, attempts, fencing_token, cancel_requested_at is not null, "
    "coalesce(locked_until < clock_timestamp(), false) "
    "from runqueue.agent_runs where queue = :q"
)


@dataclass
class Model:
    """What a run must be."""

    id: UUID
    max_attempts: int
    status: str = "pending"
    attempts: int = 0
    token: int = 0
    settled: int = 0
    asked: bool = False
    expired: int = 0
    """When its lease ended, counted in steps; 0 while it lasts."""

    @property
    def must_end(self) -> bool:
        return self.asked or self.attempts >= self.max_attempts

    def leave(self, status: str, *, settled: bool = True) -> None:
        self.status, self.expired = status, 0
        if settled:
            self.settled = self.token

    def lapse(self, otherwise: str) -> None:
        self.leave("cancelled" if self.asked else "dead" if self.must_end else otherwise, settled=False)


class Lives(RuleBasedStateMachine):
    """`queue`, `engine` and `seen` are given by the test."""

    queue: RunQueue
    engine: Any
    seen: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.lane = uuid4().hex
        self.runs: dict[UUID, Model] = {}
        self.leases: list[Lease] = []
        self.clock = 0

    def pick(self, number: int, *statuses: str) -> Model | None:
        found = [x for x in self.runs.values() if not statuses or x.status in statuses]
        return found[number % len(found)] if found else None

    @initialize()
    def begin(self) -> None:
        self.enqueue(3)
        self.enqueue(2)
        self.claim("w", 1)

    @rule(max_attempts=st.integers(1, 3))
    def enqueue(self, max_attempts: int) -> None:
        run = self.queue.enqueue("k", tenant_id="t", queue=self.lane, max_attempts=max_attempts)
        self.runs[run.id] = Model(run.id, max_attempts)

    @precondition(lambda self: self.runs)
    @rule(worker=st.sampled_from(WORKERS), limit=st.integers(1, 3))
    def claim(self, worker: str, limit: int) -> None:
        takeover = self.queue.core.ctx.policy.name == "takeover"
        lapsed = sorted((x for x in self.runs.values() if x.expired and takeover), key=lambda x: x.expired)[:limit]
        for one in [x for x in lapsed if x.must_end]:
            one.lapse("pending")
        taken = [x for x in lapsed if x.expired]
        waiting = [x for x in self.runs.values() if x.status == "pending"]
        claimed = self.queue.claim(worker, queues=[self.lane], limit=limit)
        got = [self.runs[x.run.id] for x in claimed]
        assert len(got) == len(taken) + min(limit - len(taken), len(waiting))
        assert {x.id for x in got[: len(taken)]} == {x.id for x in taken}
        for one, its in zip(got, claimed, strict=True):
            assert one in taken or one in waiting
            self.seen["reclaimed"] += one.token > 0 and one.settled < one.token
            one.status, one.expired = "leased", 0
            one.attempts += 1
            one.token += 1
            assert (its.lease.fencing_token, its.run.locked_by) == (one.token, worker)
            self.leases.append(its.lease)

    @precondition(lambda self: self.leases)
    @rule(numbers=st.lists(st.integers(0, 99), min_size=1, max_size=4))
    def heartbeat(self, numbers: list[int]) -> None:
        self.beat([self.leases[-1 - n % len(self.leases)] for n in numbers])

    def beat(self, leases: list[Lease]) -> None:
        for lease, answer in zip(leases, self.queue.heartbeat(leases), strict=True):
            one = self.runs[lease.run_id]
            mine = one.status == "leased" and one.token == lease.fencing_token
            assert (answer.renewed, answer.lost) == (mine, not mine)
            assert answer.cancel_requested == (mine and one.asked)
            if mine:
                one.expired = 0

    @precondition(lambda self: self.leases)
    @rule(number=st.integers(0, 99), verb=st.sampled_from(VERBS))
    def end(self, number: int, verb: str) -> None:
        self.write(self.leases[-1 - number % len(self.leases)], verb)

    def write(self, lease: Lease, verb: str) -> None:
        one = self.runs[lease.run_id]
        mine = one.status == "leased" and one.token == lease.fencing_token
        again = one.settled == lease.fencing_token and verb != "write"
        if verb == "complete":
            again = again and one.status == "done"
        try:
            self.act(verb, lease)
        except LeaseLost:
            assert not mine
            assert not again
            self.seen[verb] += 1
            return
        assert mine or again
        if mine and verb == "complete":
            one.leave("done")
        elif mine and verb != "write":
            self.settle(one, verb)

    def act(self, verb: str, lease: Lease) -> None:
        if verb == "write":
            with self.queue.transaction(lease) as tx:
                tx.emit("e")
        elif verb == "complete":
            self.queue.complete(lease)
        elif verb == "release":
            self.queue.release(lease)
        elif verb == "settle":
            self.queue.settle_cancelled(lease)
        else:
            self.queue.fail(lease, "x", retry=verb == "fail")

    def settle(self, one: Model, verb: str) -> None:
        if one.asked or verb == "settle":
            one.leave("cancelled")
        elif verb == "release":
            one.attempts -= 1
            one.leave("pending")
        else:
            one.leave("dead" if verb == "final" or one.attempts >= one.max_attempts else "pending")

    @precondition(lambda self: any(x.status == "leased" for x in self.runs.values()))
    @rule(number=st.integers(0, 99))
    def expire(self, number: int) -> None:
        one = self.pick(number, "leased")
        assert one is not None
        self.lapse(one)

    def lapse(self, one: Model) -> None:
        with self.engine.begin() as connection:
            connection.execute(EXPIRE, {"id": one.id})
        self.clock += 1
        one.expired = self.clock

    @precondition(lambda self: any(x.expired for x in self.runs.values()))
    @rule(limit=st.integers(1, 5))
    def reap(self, limit: int) -> None:
        everyone = self.queue.core.ctx.policy.name == "reaper"
        swept = sorted((x for x in self.runs.values() if x.expired and (everyone or x.must_end)), key=lambda x: x.id)
        assert self.queue.reap(limit).total == len(swept[:limit])
        for one in swept[:limit]:
            one.lapse("pending")

    @precondition(lambda self: any(x.status == "leased" for x in self.runs.values()))
    @rule(number=st.integers(0, 99), worker=st.sampled_from(WORKERS), again=st.booleans(), verb=st.sampled_from(VERBS))
    def lose(self, number: int, worker: str, again: bool, verb: str) -> None:
        """A holder freezes, the run goes on without it, perhaps is lost again, and then the holder wakes up."""
        one = self.pick(number, "leased")
        assert one is not None
        old = self.newest(one)
        self.lapse(one)
        self.reap(99)
        self.claim(worker, 99)
        if again and one.status == "leased":
            self.lapse(one)
        self.beat([old])
        self.the_database_agrees()
        self.write(old, verb)
        self.the_database_agrees()
        self.beat([old, self.newest(one)])

    def newest(self, one: Model) -> Lease:
        return next(x for x in reversed(self.leases) if x.run_id == one.id)

    @precondition(lambda self: self.runs)
    @rule(number=st.integers(0, 99))
    def cancel(self, number: int) -> None:
        one = self.pick(number)
        assert one is not None
        if one.status in {"pending", "leased"}:
            one.asked = True
            one.status = "cancelled" if one.status == "pending" else "leased"
        assert self.queue.cancel(one.id).status == one.status

    @precondition(lambda self: self.runs)
    @rule(number=st.integers(0, 99))
    def retry(self, number: int) -> None:
        one = self.pick(number)
        assert one is not None
        if one.status in {"dead", "cancelled"}:
            one.status, one.attempts, one.asked = "pending", 0, False
        assert self.queue.retry(one.id).status == one.status

    @invariant()
    def the_database_agrees(self) -> None:
        self.seen["steps"] += 1
        with self.engine.connect() as connection:
            rows = {tuple(row) for row in connection.execute(STATE, {"q": self.lane})}
        assert rows == {(x.id, x.status, x.attempts, x.token, x.asked, x.expired > 0) for x in self.runs.values()}

    def teardown(self) -> None:
        """End everything: the next life's sweeps must not find it."""
        for one in self.runs.values():
            if one.status in {"pending", "leased"} and not self.queue.cancel(one.id).status.terminal:
                with suppress(LeaseLost):  # where a step has failed, it is told, and not this
                    self.queue.settle_cancelled(self.newest(one))


def test_every_life_goes_by_the_model(engine, policy):
    seen = Counter[str]()
    queue = RunQueue(engine, claim=policy, settings=replace(Settings(), lease=600, heartbeat=200, retry_base=0))

    class Here(Lives):
        pass

    Here.queue, Here.engine, Here.seen = queue, engine, seen
    bounds = settings(
        max_examples=20,
        stateful_step_count=40,
        phases=[Phase.reuse, Phase.generate],  # to shrink a failure takes minutes with a database
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    # lives are drawn at random: a round may happen to lose few leases, and then proves little
    for _ in range(ROUNDS):
        run_state_machine_as_test(Here, settings=bounds)
        if seen["reclaimed"] > 10 and all(seen[verb] > 0 for verb in VERBS):
            break
    assert seen["steps"] > 300, seen
    assert seen["reclaimed"] > 10, seen
    assert all(seen[verb] > 0 for verb in VERBS), seen
