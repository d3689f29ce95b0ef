"""Everything that runqueue raises on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from runqueue.types import Lease


class RunqueueError(Exception):
    """The base of all errors of this library."""


class InvalidRun(RunqueueError, ValueError):
    """A value cannot be stored, or an option makes no sense.

    `field` names what was wrong, with the path inside it (`input.order.total`); `rule` says what must hold.
    Nothing was written.
    """

    def __init__(self, field: str, rule: str) -> None:
        super().__init__(f"{field}: {rule}")
        self.field = field
        self.rule = rule


class IdempotencyConflict(InvalidRun):
    """The idempotency key was used before with another input. `run_id` is the run that has the key."""

    def __init__(self, key: str, run_id: UUID) -> None:
        super().__init__("idempotency_key", f"{key!r} was used with another input, by run {run_id}")
        self.key = key
        self.run_id = run_id


class RunNotFound(RunqueueError, LookupError):
    """No run has this id (for this tenant, where one was named)."""

    def __init__(self, run_id: UUID) -> None:
        super().__init__(f"no run {run_id}")
        self.run_id = run_id


class LeaseLost(RunqueueError):
    """The lease is no longer the newest one of its run, or it has ended. Nothing was written for it.

    `leases` are the lost ones; in a batch, all others were written.
    """

    def __init__(self, leases: Sequence[Lease]) -> None:
        super().__init__("lease lost: " + ", ".join(f"run {x.run_id} token {x.fencing_token}" for x in leases))
        self.leases = tuple(leases)


class RowLocked(RunqueueError):
    """Another transaction has locked the run, and this caller does not wait for it. Nothing was written: try again."""


class RunCancelled(RunqueueError):
    """Raised in a handler by `raise_if_cancelled()` once somebody asked for the run to stop."""


class Timeout(RunqueueError, TimeoutError):
    """What was waited for did not happen in the time given."""


class SchemaOutdated(RunqueueError):
    """The database's schema is missing, or older than this version of the library needs."""


class PluginError(RunqueueError):
    """A plugin is missing, broken, misspelt or in conflict with another.

    `about` says which part of the configuration it is about: `plugins`, `without`, or `plugin.NAME`, its options.
    """

    def __init__(self, message: str, about: str = "plugins") -> None:
        super().__init__(message)
        self.about = about


class Retry(RunqueueError):
    """Raised in a handler: end this attempt and try again, after `delay` seconds where given.

    Without `delay` the retry policy decides. The attempt is charged.
    """

    def __init__(self, reason: str = "retry", *, delay: float | None = None) -> None:
        super().__init__(reason)
        self.delay = delay


class Discard(RunqueueError):
    """Raised in a handler: this run can never succeed; it ends as `dead` at once."""


class Snooze(RunqueueError):
    """Raised in a handler: give the run back, to be claimed again after `delay` seconds. No attempt is charged."""

    def __init__(self, delay: float, reason: str = "snooze") -> None:
        super().__init__(reason)
        self.delay = delay
