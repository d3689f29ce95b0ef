"""The default retry delay: exponential, capped, by the queue's settings."""

from __future__ import annotations

from runqueue import Failure, RetryDelay, Settings, hookimpl


def exponential(attempts: int, base: float, cap: float) -> float:
    """min(cap, base·2^(attempts−1)). The exponent is clamped: 2.0**1024 raises, and the cap would come too late."""
    return float(min(cap, base * 2.0 ** min(max(attempts - 1, 0), 60)))


@hookimpl
def runqueue_retry_delay(failure: Failure, settings: Settings) -> RetryDelay:
    """The same formula that a lost lease waits by."""
    return RetryDelay(exponential(failure.attempts, settings.retry_base, settings.retry_cap), "exponential backoff")
