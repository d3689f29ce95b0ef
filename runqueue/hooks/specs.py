"""The hooks. Each docstring says: when it is called, in whose transaction, on which thread, how results merge, and what
an exception does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pluggy
from sqlalchemy import Connection, FromClause, Table

from runqueue.decisions import (
    CheckpointStore,
    ClaimOrder,
    Failure,
    KeepLast,
    PluginSchema,
    RetryDelay,
    TenantPolicy,
)
from runqueue.settings import Settings
from runqueue.types import ClaimedRun, Run

if TYPE_CHECKING:
    import click

PROJECT = "runqueue"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Place = Literal["error", "event", "reason", "log", "input", "budget", "result", "checkpoint"]
"""Where a value that is redacted will be stored or shown."""

USUAL: tuple[Place, ...] = ("error", "event", "reason", "log")
"""The places that every redaction plugin is asked about. The others hold what handlers and callers work with."""


@hookspec(firstresult=True)
def runqueue_claim_order(runs: Table, rules: FromClause) -> ClaimOrder | None:
    """Decide the order among claimable runs.

    When: once, when the queue is built. `rules` is `agent_run_rules`, whose values an order may select from.
    Transaction: none. Thread: the one that builds the queue. Merge: one plugin besides the default may order; two are
    an error. Exception: the queue is not built.
    """


@hookspec(firstresult=True)
def runqueue_tenant_policy(tenants: FromClause, rules: FromClause) -> TenantPolicy | None:
    """Decide who may be served next: shares, and caps on runs in flight.

    When: once, when the queue is built. `tenants` is the candidate's `tenant_id` with its row of `agent_run_tenants`.
    Transaction: none. Thread: the one that builds the queue. Merge: one plugin may decide; two are an error; without
    any, tenants are not told apart. Exception: the queue is not built.
    """


@hookspec(firstresult=True)
def runqueue_retry_delay(failure: Failure, settings: Settings) -> RetryDelay | float | None:
    """Decide the seconds until the next attempt of a failed run; `math.inf` means no more attempts.

    When: a run failed, has attempts left, and the error is not final. Transaction: the one that settles the run, which
    the hook must not use. Thread: the caller's; a worker's control thread. Merge: the plugin named last answers first,
    None passes to the next, at last to `backoff`. Exception: the operation fails, and nothing is changed.
    """


@hookspec(firstresult=True)
def runqueue_checkpoint_store(settings: Settings) -> CheckpointStore | KeepLast | None:
    """Decide where and how checkpoints are kept.

    When: once, when the queue is built. Transaction: none; those of the store's methods are told there. Thread: the one
    that builds the queue. Merge: one plugin besides the default may decide; two are an error. Exception: the queue is
    not built; one of the store's methods fails the transaction that it is called in.
    """


@hookspec
def runqueue_redact(value: Any, place: Place) -> Any:
    """Return what may be stored or shown of a value: a text of an error, reason or log, or a decoded JSON value.

    When: before it is stored or logged. A plugin is asked about errors, events, reasons and log lines; one with an
    attribute `redacts`, a set of places, about those in it, so that no input or checkpoint is changed by accident.
    Tenants, kinds, queues and keys are identifiers that nobody is asked about. Transaction: none that it may use.
    Thread: the caller's. Merge: all, in the order of the configuration, the defaults first, each given what the one
    before left; None leaves the value as it is. Exception: a fixed text is stored in place of the value.
    """


@hookspec
def runqueue_runs_enqueued(connection: Connection, runs: Sequence[Run], schema: str) -> None:
    """Observe runs that were stored.

    When: after they were stored, before the commit. Transaction: the one that stores them, often the application's, in
    a savepoint. Thread: the caller's; the event loop's under AsyncRunQueue. Merge: all are called. Exception: logged
    and counted; the savepoint is undone, and all goes on. It must not commit or roll back.
    """


@hookspec
def runqueue_runs_claimed(connection: Connection, runs: Sequence[ClaimedRun], schema: str) -> None:
    """Observe runs that were claimed.

    When: after they were marked, before the commit. Transaction: the claim's, in a savepoint. Thread: the caller's; a
    worker's control thread. Merge: all are called. Exception: logged and counted; the savepoint is undone, and all goes
    on. It must not commit or roll back.
    """


@hookspec
def runqueue_runs_finished(connection: Connection, runs: Sequence[Run], schema: str) -> None:
    """Observe runs that left their lease, or were cancelled before they had one; `status` says what became of them.

    When: after complete, fail, release, a settled cancel, a cancel of a pending run, and expiry; before the commit.
    Transaction: the one of that operation, in a savepoint. Thread: the caller's; a worker's control thread. Merge: all
    are called. Exception: logged and counted; the savepoint is undone, and all goes on. It must not commit or roll
    back.
    """


@hookspec
def runqueue_run_started(run: ClaimedRun) -> None:
    """Observe a handler that is about to be called.

    When: just before. Transaction: none. Thread: the handler's; the event loop's for coroutines, which it must not
    block. Merge: all are called. Exception: logged and counted; the handler is called all the same.
    """


@hookspec
def runqueue_run_ended(run: ClaimedRun, outcome: str, error: BaseException | None) -> None:
    """Observe a handler that has ended: `done`, `failed`, `released`, `cancelled` or `lost`; not committed yet.

    When: just after, before the outcome is written. Transaction: none. Thread: the handler's; the event loop's for
    coroutines, which it must not block. Merge: all are called. Exception: logged and counted; the outcome is the same.
    """


@hookspec
def runqueue_rules() -> Mapping[str, Callable[[Any], object]] | None:
    """Say which rules of the install the plugin reads, each with the check of a value that is to be stored.

    When: once, when the queue is built; the checks by `set_rule`, with the value as JSON has it. A check raises
    ValueError or InvalidRun for what the plugin's expressions cannot read, for then no claim would work any more.
    Transaction: none; a check is called in the one that stores the rule, which it must not use. Thread: the caller's.
    Merge: all; a rule that two plugins name is an error. Exception: the queue is not built; a check's, the rule is not
    stored.
    """


@hookspec
def runqueue_schema(schema: str) -> PluginSchema | None:
    """Say what the plugin needs in the database: indexes, and migrations of its own.

    When: `runqueue migrate`, and at the start of a worker, which warns of a missing index. Transaction: none. Thread:
    the caller's. Merge: all of it is made. Exception: the migration fails, and nothing is changed.
    """


@hookspec
def runqueue_commands(group: click.Group) -> None:
    """Add commands to the command line: `group.add_command(...)`.

    When: the command line starts with the plugin named. Transaction: none. Thread: the main one. Merge: all are called;
    a name that is taken is an error. Exception: the command line fails with it.
    """
