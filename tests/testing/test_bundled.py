"""What is bundled goes through the kit as anything else would."""

from __future__ import annotations

from typing import Any, ClassVar

from runqueue import ClaimedRun, Run, RunQueue
from runqueue.testing import (
    CheckpointStoreSuite,
    ClaimOrderSuite,
    ClaimPolicySuite,
    RedactionSuite,
    RetryDelaySuite,
    Share,
    TenantPolicySuite,
)


class TestReaper(ClaimPolicySuite):
    claim = "reaper"


class TestTakeover(ClaimPolicySuite):
    claim = "takeover"


class TestPriority(ClaimOrderSuite):
    def key(self, run: Run) -> Any:
        return (-run.priority, run.available_at, run.id)


class TestAging(ClaimOrderSuite):
    plugins = ("aging",)

    def key(self, run: Run) -> Any:
        return (run.available_at.timestamp() - 60 * run.priority, run.available_at, run.id)


class TestFairness(TenantPolicySuite):
    plugins = ("fairness",)


class TestFairnessByWhatWasSpent(TenantPolicySuite):
    plugins = ("fairness",)
    plugin_options: ClassVar[dict[str, dict[str, str]]] = {"fairness": {"charge": "spent"}}
    shares: ClassVar[dict[str, Share]] = {"ant": Share(1, 2), "cat": Share(1), "dog": Share(3)}

    def serve(self, queue: RunQueue, claimed: ClaimedRun) -> float:
        spent = 3.0 if claimed.run.tenant_id == "dog" else 2.0
        with queue.transaction(claimed.lease) as tx:
            tx.spend(spent)
        queue.complete(claimed.lease)
        return spent


class TestBackoff(RetryDelaySuite):
    plugins = ("backoff",)


class TestCheckpoints(CheckpointStoreSuite):
    plugins = ("checkpoints",)


class TestRedaction(RedactionSuite):
    plugins = ("redaction",)
    secrets = (
        ("connection to postgresql://app:hunter2@db/app failed", "hunter2"),
        ("401 for Authorization: Bearer abcdef0123456789", "abcdef0123456789"),
        ("bad api_key='sk-live-0123456789abcdef'", "0123456789abcdef"),
    )
