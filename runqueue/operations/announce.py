"""Wake-ups, sent with the transaction that gives a reason for them."""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import Connection, TwoPhaseTransaction

from runqueue.operations.context import Context
from runqueue.statements.parts import notify


def announce(connection: Connection, ctx: Context, hints: Iterable[str]) -> None:
    """Send each hint once, at the commit.

    PostgreSQL cannot prepare a transaction that has sent one: what a two-phase transaction stores is found by polling.
    """
    if ctx.settings.notify and not isinstance(connection.get_transaction(), TwoPhaseTransaction):
        for hint in sorted(set(hints)):
            connection.execute(notify(ctx.channel), {"payload": hint})
