"""Every tunable, with its default, in one immutable value. Nothing is read from the environment here."""

from __future__ import annotations

from dataclasses import dataclass, fields

from runqueue.errors import InvalidRun


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a queue and its workers. Durations are seconds, sizes are bytes."""

    lease: float = 45.0
    """How long a lease lasts without a heartbeat."""
    heartbeat: float = 15.0
    """How often a worker renews its leases; less than half of `lease`, so that one may fail."""
    reap_interval: float = 5.0
    reap_limit: int = 500
    poll_interval: float = 1.0
    """How often an idle worker looks for work. Wake-ups only make it look sooner."""
    watch_interval: float = 0.2
    """How often `wait` and event readers look, all of a process together with one statement."""
    max_attempts: int = 3
    retry_base: float = 5.0
    retry_cap: float = 300.0
    """A retry waits min(`retry_cap`, `retry_base`·2^(attempts−1)); a lost run too, counted from its last heartbeat."""
    cancel_grace: float = 30.0
    """From a stop request to the forced end of a handler that did not stop by itself."""
    abandon_after: float = 5.0
    """From the forced end of a handler to giving up on it."""
    drain_timeout: float = 30.0
    """From SIGTERM to the release of the runs that are still going."""
    statement_timeout: float = 10.0
    """The client-side deadline of every database call of the library."""
    connect_timeout: float = 5.0
    notify: bool = True
    """Whether enqueue and cancel announce themselves by NOTIFY."""
    listen: bool = True
    """Whether a worker listens; polling alone is correct."""
    listen_url: str | None = None
    """A direct URL for LISTEN where the main one goes through a transaction pooler."""
    listen_probe: float = 10.0
    """How often a silent listener's connection is checked."""
    input_limit: int = 256 * 1024
    result_limit: int = 256 * 1024
    checkpoint_limit: int = 1024 * 1024
    event_limit: int = 64 * 1024
    error_limit: int = 8 * 1024
    json_depth: int = 64
    checkpoints_kept: int = 3

    def __post_init__(self) -> None:
        positive = {f.name for f in fields(self)} - {"notify", "listen", "listen_url", "retry_base", "retry_cap"}
        for name in sorted(positive | {"retry_base", "retry_cap"}):
            if isinstance(getattr(self, name), bool) or not isinstance(getattr(self, name), int | float):
                raise InvalidRun(f"settings.{name}", f"must be a number, not {getattr(self, name)!r}")
        for name in sorted(positive):
            if not getattr(self, name) > 0:
                raise InvalidRun(f"settings.{name}", f"must be greater than 0, not {getattr(self, name)!r}")
        if self.retry_base < 0 or self.retry_cap < 0:
            raise InvalidRun("settings.retry_base", "retry_base and retry_cap must not be negative")
        if self.heartbeat >= self.lease / 2:
            raise InvalidRun(
                "settings.heartbeat",
                f"must be less than half of the lease, or one lost heartbeat loses the run: "
                f"heartbeat={self.heartbeat:g}, lease={self.lease:g}",
            )
