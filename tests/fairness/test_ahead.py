"""Turns that were looked up for several claims at once give the same shares as those that are looked up for each."""

from __future__ import annotations

import pytest

from runqueue import NewRun
from runqueue.operations import walk


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_what_a_look_cuts_off_a_turn_is_given_later(fair, batch, monkeypatch):
    monkeypatch.setattr(walk, "CURRENT", 60.0)
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    fair.enqueue_many(NewRun(kind="k", tenant_id=name) for name in weights for _ in range(100))
    for name, weight in weights.items():
        fair.set_tenant(name, weight=weight)
    served = [x.run.tenant_id for _ in range(140 // batch) for x in fair.claim("w", limit=batch)]
    for name, weight in weights.items():
        assert abs(served.count(name) - 20 * weight) <= weight, served
