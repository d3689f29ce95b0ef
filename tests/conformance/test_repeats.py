"""A write whose answer was lost is repeated: a success without effect, even when the run has moved on."""

from __future__ import annotations

import pytest
from conformance.driver import claim_one, lose

from runqueue import LeaseLost

VERBS = {
    "complete": lambda q, lease: q.complete(lease, {"n": 1}),
    "complete_many": lambda q, lease: q.complete_many([(lease, None)]),
    "fail": lambda q, lease: q.fail(lease, "x"),
    "last fail": lambda q, lease: q.fail(lease, "x", retry=False),
    "release": lambda q, lease: q.release(lease),
    "settle_cancelled": lambda q, lease: q.settle_cancelled(lease),
}


@pytest.fixture(params=VERBS)
def write(request):
    return VERBS[request.param]


def test_a_repetition_succeeds_and_changes_nothing(q, facts, write):
    q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    first = write(q, lease)
    before = facts.everything()
    for _ in range(2):
        assert write(q, lease) == first
    assert facts.everything() == before


@pytest.mark.parametrize("verb", ["fail", "release"])
def test_a_repetition_after_the_next_claim_leaves_the_next_holder_alone(q, facts, verb):
    q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    VERBS[verb](q, lease)
    newer = claim_one(q)
    before = facts.everything()
    assert VERBS[verb](q, lease) == newer.run
    assert facts.everything() == before
    q.complete(newer.lease)


def test_a_repetition_within_a_batch(q, facts):
    for _ in range(3):
        q.enqueue("k", tenant_id="t")
    leases = [x.lease for x in q.claim("w", limit=3)]
    q.complete(leases[1], "kept")
    q.complete_many((x, "late") for x in leases)
    assert [q.get(x.run_id).result for x in leases] == ["late", "kept", "late"]
    before = facts.everything()
    q.complete_many((x, "later") for x in [*leases, leases[0]])
    assert facts.everything() == before


@pytest.mark.parametrize("verb", ["fail", "release", "settle_cancelled", "last fail"])
def test_what_was_settled_otherwise_cannot_be_completed(q, facts, verb):
    q.enqueue("k", tenant_id="t")
    lease = claim_one(q).lease
    VERBS[verb](q, lease)
    before = facts.everything()
    with pytest.raises(LeaseLost):
        q.complete(lease, "again")
    assert facts.everything() == before


def test_a_completion_is_no_repetition_of_another_holders(q, facts):
    q.enqueue("k", tenant_id="t")
    old = claim_one(q).lease
    new = lose(q, facts, old).lease
    q.complete(new, "new")
    before = facts.everything()
    with pytest.raises(LeaseLost):
        q.complete(old, "old")
    assert facts.everything() == before
