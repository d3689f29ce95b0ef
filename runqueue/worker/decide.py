"""The worker's decisions, as arithmetic: no clock, no thread, no database. Times are monotonic seconds."""

from __future__ import annotations

import random


def stop_by(sent: float, time_left: float) -> float:
    """When a handler must have been told to stop, if nothing more is heard from the database.

    `sent` is when the accepted renewal was *sent*: the database counted from later, so this is early, never late.
    """
    return sent + time_left - min(time_left * 0.1, 3.0)


def jittered(interval: float) -> float:
    """The interval ±20 %, so that a fleet that was started together does not stay in step."""
    return interval * random.uniform(0.8, 1.2)


def pause_after(failures: int, longest: float = 10.0) -> float:
    """How long to leave the database alone after so many failures in a row."""
    return random.uniform(0.5, 1.0) * min(longest, 0.1 * 2.0 ** min(failures, 10))


def to_claim(concurrency: int, busy: int, unsettled: int, *, most: int = 128) -> int:
    """How many runs to ask for: the free slots, none while acknowledgements pile up."""
    if unsettled > 4 * most:
        return 0
    return max(0, min(concurrency - busy, most))
