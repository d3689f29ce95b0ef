"""Tenants and the install's rules by the Python API: what is stored, what is refused, and from when on it counts."""

from __future__ import annotations

import logging
import math

import pytest
from sqlalchemy import create_engine
from support.tools import eventually

from runqueue import AsyncRunQueue, InvalidRun, PluginError, RunQueue, RunStatus, Tenant, Worker, hookimpl

HOSTILE = "a'; drop table x; --\u202e\n\t\"[red]ü💥"


@pytest.fixture
def queue(engine):
    return RunQueue(engine, plugins=["fairness", "aging"])


def claimed(queue, limit=100):
    """The tenants of the runs that claims give, as many claims as give any."""
    found = []
    while batch := queue.claim("w", limit=limit):
        found += [x.run.tenant_id for x in batch]
    return found


# ------------------------------------------------------------------------------------------------------------- tenants


def test_what_is_not_given_stays_and_none_is_the_default(queue):
    queue.set_tenant("a", weight=2)
    queue.set_tenant("a", cap=3)
    assert queue.tenant("a") == Tenant("a", 2.0, 3, 0, 0.0, None)
    queue.set_tenant("a", weight=None)
    assert queue.tenant("a") == Tenant("a", None, 3, 0, 0.0, None)
    queue.set_tenant("a", weight=0.01, cap=None)
    assert queue.tenant("a") == Tenant("a", 0.01, None, 0, 0.0, None)
    assert queue.tenant("never heard of") == Tenant("never heard of", None, None, 0, 0.0, None)


def test_tenants_are_listed_by_name_a_page_at_a_time(queue):
    for name in ("c", "a", "e"):
        queue.set_tenant(name, cap=1)
    for name in ("b", "a", HOSTILE):
        queue.enqueue("k", tenant_id=name)
    queue.enqueue("k", tenant_id="waits only", delay=60)
    assert len(claimed(queue)) == 3
    pages, after = [], ""
    while page := queue.tenants(after=after, limit=2):
        pages += page
        after = page[-1].tenant_id
    assert [x.tenant_id for x in pages] == [x.tenant_id for x in queue.tenants()]
    assert {x.tenant_id: x.in_flight for x in pages} == {"a": 1, "b": 1, "c": 0, "e": 0, HOSTILE: 1}
    assert {x.tenant_id: x.cap for x in pages} == {"a": 1, "b": None, "c": 1, "e": 1, HOSTILE: None}
    assert [queue.tenant(x.tenant_id) for x in pages] == pages


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "^weight: must be given, or a cap$"),
        ({"weight": 0}, "^weight: must be a number from 0.01 to 1000, not 0$"),
        ({"weight": 1000.5}, "^weight: .* not 1000.5$"),
        ({"weight": math.nan}, "^weight: .* not nan$"),
        ({"weight": math.inf}, "^weight: .* not inf$"),
        ({"weight": True}, "^weight: .* not True$"),
        ({"weight": "2"}, "^weight: .* not '2'$"),
        ({"weight": 10**400}, "^weight: must be a number"),
        ({"cap": -1}, "^cap: must be from 0 to 1000000, not -1$"),
        ({"cap": 10**7}, "^cap: must be from 0"),
        ({"cap": 1.0}, "^cap: must be a whole number"),
        ({"cap": True}, "^cap: must be a whole number"),
        ({"cap": 1, "weight": -1}, "^weight: "),
    ],
)
def test_a_wrong_weight_or_cap_names_the_field_and_the_rule_and_changes_nothing(queue, given, says):
    with pytest.raises(InvalidRun, match=says):
        queue.set_tenant("a", **given)
    assert queue.tenants() == []


@pytest.mark.parametrize("name", ["", "a\0", "\ud800", "x" * 256, None, 7])
def test_an_odd_name_is_refused(queue, name):
    for call in (lambda: queue.set_tenant(name, cap=1), lambda: queue.tenant(name)):
        with pytest.raises(InvalidRun, match=r"^tenant_id: "):
            call()
    if name != "":
        with pytest.raises(InvalidRun, match=r"^after: "):
            queue.tenants(after=name)
    assert queue.tenants() == []


def test_a_cap_counts_for_the_next_look_at_the_tenants(queue):
    queue.enqueue_many([run("a") for _ in range(20)])
    queue.set_tenant("a", cap=2)
    assert claimed(queue) == ["a"] * 2
    queue.set_tenant("a", cap=5)
    assert claimed(queue) == ["a"] * 3
    queue.set_tenant("a", cap=1)
    assert claimed(queue) == []
    assert queue.tenant("a").in_flight == 5, "runs in flight go on"
    queue.set_tenant("a", cap=0)
    assert claimed(queue) == []
    queue.set_rule("fairness.cap", 7)
    queue.set_tenant("a", cap=None)
    assert claimed(queue) == ["a"] * 2
    queue.set_rule("fairness.cap", 0)
    assert claimed(queue) == []
    queue.set_rule("fairness.cap", None)
    assert claimed(queue) == ["a"] * 13


def test_a_weight_counts_for_the_next_look_at_the_tenants(queue, engine):
    queue.enqueue_many([run(name) for name in "ab" for _ in range(60)])
    queue.set_tenant("a", weight=3)
    first = [x.run.tenant_id for x in queue.claim("w", limit=40)]
    assert first.count("a") in range(29, 32)
    queue.set_tenant("a", weight=0.01)
    queue.set_tenant("b", weight=10)
    second = [x.run.tenant_id for x in RunQueue(engine, plugins=["fairness", "aging"]).claim("w", limit=40)]
    assert second.count("b") >= 37


def run(tenant, **options):
    from runqueue import NewRun

    return NewRun(kind="k", tenant_id=tenant, **options)


def test_a_running_claimer_hears_of_a_cap_soon(queue):
    queue.enqueue_many([run("a") for _ in range(50)])
    assert len(queue.claim("w", limit=1)) == 1
    queue.set_tenant("a", cap=1)
    eventually(lambda: not queue.claim("w", limit=1), 5, what="a claim under the new cap")
    assert queue.tenant("a").in_flight < 50


async def test_both_faces_agree(queue, url):
    aqueue = AsyncRunQueue(url, plugins=["fairness", "aging"])
    await aqueue.set_tenant("a", weight=2, cap=3)
    await aqueue.set_rule("fairness.cap", 9)
    assert await aqueue.tenants() == queue.tenants()
    assert await aqueue.tenant("a") == queue.tenant("a") == Tenant("a", 2.0, 3, 0, 0.0, None)
    assert await aqueue.rules() == queue.rules() == {"fairness.cap": 9}
    assert aqueue.plugins() == queue.plugins()
    await aqueue.close()


# --------------------------------------------------------------------------------------------------------------- rules


def test_rules_are_stored_replaced_and_removed(queue):
    assert queue.rules() == {}
    queue.set_rule("aging.step", 30.5)
    queue.set_rule("fairness.half_life", 60)
    queue.set_rule("aging.step", 31)
    assert queue.rules() == {"aging.step": 31, "fairness.half_life": 60}
    for _ in range(2):
        queue.set_rule("aging.step", None)
    assert queue.rules() == {"fairness.half_life": 60}


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("aging.step", [-1, 1e9, True, "60", [60], {}, "x", 10**400]),
        ("fairness.cap", [-1, 5.0, True, "5", 10**7, [], {"a": 1}, 2**31]),
        ("fairness.half_life", [0, 0.5, -3, "600", True, 1e300]),
        ("claim_order", ["", 5, ["aging"], "a\0", True]),
        ("tenant_policy", [5, {}, "x" * 300, False]),
    ],
)
def test_a_value_that_a_claim_could_not_read_is_refused(queue, name, values):
    queue.enqueue("k", tenant_id="a")
    for value in values:
        with pytest.raises(InvalidRun, match=f"^{name}"):
            queue.set_rule(name, value)
    assert name not in queue.rules()
    assert claimed(queue) == ["a"]


EXTREMES = {"aging.step": [0, 0.0, 1e-300, 365 * 86400], "fairness.cap": [0, 1_000_000],
            "fairness.half_life": [1, 1.5, 10 * 365 * 86400.0]}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), [(name, x) for name, values in EXTREMES.items() for x in values])
def test_whatever_is_accepted_leaves_claims_working(engine, name, value):
    plugins = {"plugins": ["fairness", "aging"], "plugin_options": {"fairness": {"charge": "seconds"}}}
    queue = RunQueue(engine, **plugins)
    queue.set_rule(name, value)
    queue.enqueue_many([run("a", priority=x) for x in (2**31 - 1, -(2**31), 0)])
    queue.set_tenant("a", cap=3)
    for claim in queue.claim("w", limit=2):
        queue.complete(claim.lease)
    assert len(claimed(queue)) == 1


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("fairness.caps", ["fairness.cap", "did you mean"]),
        ("claimorder", ["claim_order", "did you mean"]),
        ("zzz", ["rules: claim_order, tenant_policy", "aging.step"]),
    ],
)
def test_a_rule_that_nobody_reads_is_refused(queue, name, parts):
    for value in (1, None):
        with pytest.raises(InvalidRun, match=r"^name: no plugin in use reads a rule ") as caught:
            queue.set_rule(name, value)
        assert [x for x in parts if x not in str(caught.value)] == []
    assert queue.rules() == {}


def test_a_rule_of_a_plugin_that_is_not_in_use_can_be_removed_but_not_set(queue, engine):
    queue.set_rule("fairness.cap", 5)
    plain = RunQueue(engine)
    with pytest.raises(InvalidRun, match="the plugin 'fairness' is installed, but not in use here"):
        plain.set_rule("fairness.cap", 6)
    plain.set_rule("fairness.cap", None)
    assert queue.rules() == {}


def test_rules_of_plugins_are_checked_when_the_queue_is_built(engine):
    class Reads:
        def __init__(self, answer):
            self.answer = answer

        @hookimpl
        def runqueue_rules(self):
            return self.answer

    def check(value):
        raise ValueError("must be nice")

    for answer, says in (
        (["x"], "must return checks by name"),
        ({"x": 5}, "must return checks by name"),
        ({"claim_order": check}, "may not read the rule 'claim_order'"),
        ({"fairness.cap": check}, "may not read the rule 'fairness.cap'"),
    ):
        with pytest.raises(PluginError, match=says):
            RunQueue(engine, plugins=["fairness", Reads(answer)])
    queue = RunQueue(engine, plugins=[Reads({"mine.rule": check})])
    with pytest.raises(InvalidRun, match=r"^mine.rule: must be nice$"):
        queue.set_rule("mine.rule", 1)
    assert queue.rules() == {}


def test_a_changed_decider_is_told_to_who_set_it_and_to_who_starts(queue, engine):
    queue.enqueue("k", tenant_id="a")
    assert claimed(queue) == ["a"]
    assert queue.rules() == {"claim_order": "aging", "tenant_policy": "fairness"}
    queue.set_rule("claim_order", "priority")
    queue.enqueue("k", tenant_id="a")
    for other in (queue, RunQueue(engine, plugins=["fairness", "aging"])):
        with pytest.raises(PluginError, match="in this install 'priority' orders claims, in this process 'aging'"):
            other.claim("w")
        with pytest.raises(PluginError):
            other.check()
    assert claimed(RunQueue(engine, plugins=["fairness"])) == ["a"]


# ------------------------------------------------------------------------------------------------------------- explain


def test_explain_says_that_a_tenant_is_at_its_cap(queue):
    queue.set_tenant("acme", cap=2)
    queue.enqueue_many([run("acme") for _ in range(4)] + [run("other") for _ in range(3)])
    assert {queue.explain(x.id).rule for x in queue.list().runs} == {"waiting"}
    assert claimed(queue).count("acme") == 2
    waiting = queue.list(tenant_id="acme", status="pending").runs[0].id
    for cap, rule, detail in (
        (2, "tenant_cap", "acme has 2 of 2 runs in flight"),
        (1, "tenant_cap", "acme has 1 of 1 runs in flight"),
        (0, "tenant_cap", "acme has 0 of 0 runs in flight"),
        (3, "waiting", "had a free slot"),
        (None, "waiting", "had a free slot"),
    ):
        queue.set_tenant("acme", cap=cap)
        found = queue.explain(waiting)
        assert (found.rule, detail in found.detail) == (rule, True), found
    queue.set_rule("fairness.cap", 2)
    assert queue.explain(waiting).rule == "tenant_cap"


def test_explain_names_what_holds_a_run_even_without_its_cap(queue):
    queue.set_tenant("acme", cap=0)
    later = queue.enqueue("k", tenant_id="acme", delay=60)
    assert queue.explain(later.id).rule == "scheduled"
    now = queue.enqueue("k", tenant_id="acme")
    queue.pause()
    assert queue.explain(now.id).rule == "paused"
    queue.resume()
    assert queue.explain(now.id).rule == "tenant_cap"
    queue.cancel(now.id)
    assert queue.explain(now.id).rule == "ended"


def test_explain_counts_the_runs_of_the_tenant_only_where_tenants_are_told_apart(queue, engine):
    queue.enqueue_many([run("big") for _ in range(30)])
    queue.enqueue("k", tenant_id="small")
    last = queue.enqueue("k", tenant_id="small")
    assert "behind 1 runs of its tenant" in queue.explain(last.id).detail
    assert "behind 31 runs of its kind" in RunQueue(engine).explain(last.id).detail


# ----------------------------------------------------------------------------------------------------------- observers


def test_a_worker_counts_the_errors_of_observers(engine, settings, caplog):
    class Nosy:
        @hookimpl
        def runqueue_run_started(self, run):
            raise RuntimeError("nosy")

    queue = RunQueue(engine, plugins=[Nosy()], settings=settings)
    queue.handler("k")(lambda run: None)
    worker = Worker(queue)
    assert worker.stats.plugin_errors == {}
    done = queue.enqueue_many([run("a"), run("a")])
    with caplog.at_level(logging.CRITICAL, "runqueue.hooks"):
        assert worker.drain() == 2
    assert [queue.get(x.id).status for x in done] == [RunStatus.DONE] * 2
    assert worker.stats.plugin_errors == {"Nosy": 2}


def test_plugins_are_told_without_a_database():
    nowhere = create_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    queue = RunQueue(nowhere, plugins=["aging"], plugin_options={"checkpoints": {"keep": 7}}, without=["redaction"])
    names = [x.name for x in queue.plugins()]
    assert names == ["priority", "backoff", "checkpoints", "aging"]
    assert queue.plugins()[2].options == {"keep": 7}
    assert "runqueue_claim_order" in queue.plugins()[3].hooks
    assert queue.plugins()[3].version
