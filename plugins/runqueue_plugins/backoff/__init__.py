"""The default retry delay: exponential, capped by the settings, with jitter, and not before the server allows.

Policies made of tenacity's objects replace it, for all kinds or for some.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from runqueue import Failure, InvalidRun, RetryDelay, Settings, hookimpl
from runqueue_plugins.backoff.policy import RecordedFailure, RetryPolicy
from runqueue_plugins.backoff.server import retry_after

__all__ = ["Backoff", "RecordedFailure", "RetryPolicy", "exponential", "retry_after"]

DAY = 86400.0
"""The most that a server's wish counts for, in seconds."""


def exponential(attempts: int, base: float, cap: float) -> float:
    """min(cap, base·2^(attempts−1)). The exponent is clamped: 2.0**1024 raises, and the cap would come too late."""
    return float(min(cap, base * 2.0 ** min(max(attempts - 1, 0), 60)))


class Backoff:
    """min(`retry_cap`, `retry_base`·2^(n−1)) seconds after the n-th attempt, as after a lost lease.

    `jitter`, from 0 to 1, takes up to that fraction off at random. `honour_retry_after`: a delay is not shorter than
    the server behind the error asks for (see `retry_after`), up to a day, above the cap too; jitter is then added.
    `policy` counts instead, for the kinds in `kinds` theirs; one without a `wait` leaves the delay to the rule above.
    Raises InvalidRun.
    """

    def __init__(
        self,
        jitter: float = 0.0,
        honour_retry_after: bool = True,
        policy: RetryPolicy | None = None,
        kinds: Mapping[str, RetryPolicy] | None = None,
    ) -> None:
        if isinstance(jitter, bool) or not isinstance(jitter, (int, float)) or not 0 <= jitter <= 1:
            raise InvalidRun("jitter", f"must be a number from 0 to 1, not {jitter!r}")
        if not isinstance(honour_retry_after, bool):
            raise InvalidRun("honour_retry_after", f"must be true or false, not {honour_retry_after!r}")
        if policy is not None and not isinstance(policy, RetryPolicy):
            raise InvalidRun("policy", f"must be a RetryPolicy, given in code, not {policy!r:.80}")
        if kinds is not None and not isinstance(kinds, Mapping):
            raise InvalidRun("kinds", f"must map kinds to RetryPolicy objects, not be {kinds!r:.80}")
        for kind, own in (kinds or {}).items():
            if not isinstance(kind, str) or not isinstance(own, RetryPolicy):
                raise InvalidRun(f"kinds[{kind!r:.80}]", f"must be a RetryPolicy, given in code, not {own!r:.80}")
        self._jitter = jitter
        self._honours = honour_retry_after
        self._policy = policy
        self._kinds = dict(kinds or {})

    @hookimpl
    def runqueue_retry_delay(self, failure: Failure, settings: Settings) -> RetryDelay:
        """The policy's answer, else exponential backoff."""
        policy = self._kinds.get(failure.kind, self._policy)
        answer = None if policy is None else policy.ask(failure, settings.retry_cap)
        return self._default(failure, settings) if answer is None else answer

    def _default(self, failure: Failure, settings: Settings) -> RetryDelay:
        delay = exponential(failure.attempts, settings.retry_base, settings.retry_cap)
        delay *= random.uniform(1 - self._jitter, 1)
        asked = retry_after(failure.error) if self._honours and failure.error is not None else None
        if asked is None or asked <= delay:
            return RetryDelay(delay, "exponential backoff with jitter" if self._jitter else "exponential backoff")
        later = min(min(asked, DAY) * random.uniform(1, 1 + self._jitter), DAY)
        return RetryDelay(later, f"the server asked for {asked:g} s{', cut to a day' if asked > DAY else ''}")
