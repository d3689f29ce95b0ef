"""Priority that waiting raises: so many seconds of waiting weigh as much as one level of priority.

A run of priority p that became due at a is served by a − p·step: linear in time, so the order of two runs never
changes, and an index serves it. Nothing starves: what becomes due more than (q − p)·step seconds after a run of
priority p, with a priority of q, is served after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Double, FromClause, Table, Text, cast, func, select

from runqueue import ClaimOrder, InvalidRun, hookimpl

RULE = "aging.step"
DEFAULT_STEP = 60.0
"""Seconds of waiting that weigh as much as one level, where the rule `aging.step` does not say otherwise."""

LONGEST_STEP = 365 * 86400.0
"""More would be a priority that no waiting makes up for; the default order is for that."""


@hookimpl
def runqueue_claim_order(runs: Table, rules: FromClause) -> ClaimOrder:
    """By the time of becoming due, less what the priority is worth."""
    said = select(cast(cast(rules.c.value_json, Text), Double)).where(rules.c.name == RULE).scalar_subquery()
    return ClaimOrder(
        level=runs.c.priority,
        terms=(runs.c.available_at, runs.c.id),
        step=func.greatest(func.coalesce(said, DEFAULT_STEP), 0.0),
    )


@hookimpl
def runqueue_rules() -> Mapping[str, Callable[[Any], None]]:
    """The seconds that weigh as much as one level."""
    return {RULE: _check}


def _check(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LONGEST_STEP:
        raise InvalidRun(RULE, f"must be seconds from 0 to {LONGEST_STEP:.0f}, not {value!r:.80}")
