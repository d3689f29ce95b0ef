"""What a claim policy is: where a claim finds candidates, and what a sweep must do besides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from sqlalchemy import Executable, Index

from runqueue.schema.tables import Tables
from runqueue.statements.claim import Arm


@runtime_checkable
class ClaimPolicy(Protocol):
    """Everything else about a claim, its lanes, order, lock and marks, is the same for all policies."""

    @property
    def name(self) -> str:
        """How configuration names it."""

    def arms(self) -> Sequence[Arm]:
        """Where candidates come from, in the order in which they are tried."""

    def sweep(self, t: Tables) -> Executable:
        """The statement that moves expired leases which no claim of this policy will take."""

    def indexes(self, t: Tables) -> Sequence[Index]:
        """Indexes that only this policy needs; `migrate` makes them."""
