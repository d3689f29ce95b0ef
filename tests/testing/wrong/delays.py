"""Retry delays that break rules."""

from __future__ import annotations

import math

from sqlalchemy import text

from runqueue import RetryDelay, hookimpl
from runqueue.testing import RetryDelaySuite

ATTEMPT = "test_every_attempt_is_answered"
ERROR = "test_every_error_is_answered"
SETTING = "test_every_setting_is_answered"
WAITS = "test_a_failed_run_waits_as_long_as_was_said"
NOTHING = "test_deciding_changes_nothing"


class Delay:
    """What `seconds` says."""

    def __init__(self, seconds):
        self.name, self._seconds = "delay", seconds

    @hookimpl
    def runqueue_retry_delay(self, failure, settings):
        return RetryDelay(self._seconds(failure, settings), "because")


class TestRight(RetryDelaySuite):
    plugins = (Delay(lambda failure, settings: min(settings.retry_cap, 3.0 * failure.attempts)),)
    fails = ()


class TestNoMoreAttempts(RetryDelaySuite):
    plugins = (Delay(lambda failure, settings: math.inf),)
    fails = ()


class TestNegative(RetryDelaySuite):
    plugins = (Delay(lambda failure, settings: 100.0 - failure.attempts if failure.attempts > 40 else 1.0),)
    fails = (ATTEMPT, SETTING)


class TestNotANumber(RetryDelaySuite):
    plugins = (Delay(lambda failure, settings: math.nan if failure.attempts > 5000 else 1.0),)
    fails = (ATTEMPT,)


class TestOverflows(RetryDelaySuite):
    plugins = (Delay(lambda failure, settings: min(300.0, 2.0**failure.attempts)),)
    fails = (ATTEMPT, SETTING)


class TestAsksTheError(RetryDelaySuite):
    plugins = (Delay(lambda failure, settings: 1.0 if str(failure.error) else 2.0),)
    fails = (ERROR,)


class TestDivides(RetryDelaySuite):
    plugins = (Delay(lambda failure, settings: 1.0 + settings.retry_base / settings.retry_cap),)
    fails = (SETTING,)


class Meddles(Delay):
    """Thinks better of it when it has been decided."""

    @hookimpl
    def runqueue_runs_finished(self, connection):
        connection.execute(text("update runqueue.agent_runs set available_at = now() + interval '1 h' "
                                "where status = 'pending'"))  # fmt: skip


class TestMeddles(RetryDelaySuite):
    plugins = (Meddles(lambda failure, settings: 1.0),)
    fails = (WAITS,)


class Notes(Delay):
    """Writes down what it decides, on a connection of its own."""

    engine = None

    @hookimpl
    def runqueue_retry_delay(self, failure, settings):
        if self.engine.url.host != "nowhere":
            with self.engine.begin() as connection:
                charge = (
                    "insert into runqueue.agent_run_tenants (tenant_id, usage) values ('t', 1) "
                    "on conflict (tenant_id) do update set usage = agent_run_tenants.usage + 1"
                )
                connection.execute(text(charge))
        return RetryDelay(1.0)


class TestNotes(RetryDelaySuite):
    fails = (NOTHING,)
    plugins = (Notes(None),)

    def make_queue(self, engine, **changes):
        Notes.engine = engine
        return super().make_queue(engine, **changes)

    def failure(self, attempts, error, **changes):
        return super().failure(min(attempts, 5), error, **changes)
