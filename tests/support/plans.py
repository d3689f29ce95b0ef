"""What a statement costs: the plans of `runqueue.testing`, by the name that tests know."""

from __future__ import annotations

from runqueue.testing.plans import Plan, explain

__all__ = ["Plan", "explain"]
