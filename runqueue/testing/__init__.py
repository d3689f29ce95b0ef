"""The kit for authors of plugins and claim policies: suites to subclass, fixtures, fake handlers, fault points.

In `conftest.py`: `pytest_plugins = ["runqueue.testing.fixtures"]`. In a test module, one line for each hook that the
plugin implements: `class TestMine(ClaimOrderSuite): plugins = ["mine"]`. Needs pytest, and a PostgreSQL: the one that
RUNQUEUE_TEST_DSN names, on which databases may be made, else one that is started for the tests.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runqueue.testing.checkpoint_store import CheckpointStoreSuite
    from runqueue.testing.claim_order import ClaimOrderSuite
    from runqueue.testing.claim_policy import ClaimPolicySuite
    from runqueue.testing.faults import Faults
    from runqueue.testing.handlers import Blocks, Fails, Records
    from runqueue.testing.redaction import RedactionSuite
    from runqueue.testing.retry_delay import RetryDelaySuite
    from runqueue.testing.rig import Rig
    from runqueue.testing.suite import PluginSuite
    from runqueue.testing.tenant_policy import Share, TenantPolicySuite

_PLACES = {
    "Blocks": "handlers",
    "CheckpointStoreSuite": "checkpoint_store",
    "ClaimOrderSuite": "claim_order",
    "ClaimPolicySuite": "claim_policy",
    "Fails": "handlers",
    "Faults": "faults",
    "PluginSuite": "suite",
    "Records": "handlers",
    "RedactionSuite": "redaction",
    "RetryDelaySuite": "retry_delay",
    "Rig": "rig",
    "Share": "tenant_policy",
    "TenantPolicySuite": "tenant_policy",
}
"""Each name, and its module; loaded when asked for, as the suites import pytest."""

__all__ = [
    "Blocks",
    "CheckpointStoreSuite",
    "ClaimOrderSuite",
    "ClaimPolicySuite",
    "Fails",
    "Faults",
    "PluginSuite",
    "Records",
    "RedactionSuite",
    "RetryDelaySuite",
    "Rig",
    "Share",
    "TenantPolicySuite",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = f"{__name__}.{_PLACES[name]}"
    if module.endswith(("_order", "_policy", "_delay", "_store", "redaction")):
        import pytest

        pytest.register_assert_rewrite(module)  # so that a suite says what it compared
    return getattr(import_module(module), name)
