"""The hooks. Each docstring says: when it is called, in whose transaction, on which thread, how results merge, and what
an exception does."""

from __future__ import annotations

import pluggy
from sqlalchemy import Table

from runqueue.order import ClaimOrder
from runqueue.settings import Settings

PROJECT = "runqueue"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def runqueue_claim_order(runs: Table) -> ClaimOrder | None:
    """Decide the order among claimable runs.

    Called once, when the queue is built; no transaction; the thread that builds the queue. The plugin named last
    answers first; None leaves it to the next. An exception fails the building of the queue.
    """


@hookspec(firstresult=True)
def runqueue_retry_delay(kind: str, attempts: int, error_code: str, settings: Settings) -> float | None:
    """Decide the seconds until the next attempt of a failed run; `math.inf` means no more attempts.

    Called when a run failed and has attempts left; in the transaction that settles it, which it must not use; the
    thread of the caller (a worker's control thread). The plugin named last answers first; None leaves it to the next.
    An exception fails the operation, and nothing is changed.
    """


@hookspec(firstresult=True)
def runqueue_redact(text: str) -> str | None:
    """Return what may be stored of an error's text.

    Called before an error is recorded; no transaction; the thread of the caller. The plugin named last answers first;
    None leaves it to the next. An exception stores a fixed text in place of the error's.
    """
