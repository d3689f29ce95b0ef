"""The default retry delay and policies made of tenacity's objects, asked directly, through `fail`, and by a worker."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import tenacity as t
from sqlalchemy import Engine
from support.here import running
from support.tools import eventually
from tenacity.asyncio import retry_if_exception as async_retry

from runqueue import Failure, InvalidRun, PluginError, Run, RunQueue, RunStatus, Settings, Worker
from runqueue.hooks.manager import Hooks
from runqueue_plugins.backoff import DAY, RecordedFailure, RetryPolicy, exponential, retry_after

SETTINGS = Settings(retry_base=5, retry_cap=300)
UNKNOWN = object()


def failure(
    attempts: int = 1, error: Any = UNKNOWN, *, kind: str = "k", age: float = 60.0, message: str = "no luck"
) -> Failure:
    return Failure(
        kind=kind,
        tenant_id="t",
        attempts=attempts,
        max_attempts=2**31 - 1,
        error=ValueError(message) if error is UNKNOWN else error,
        error_code="ValueError",
        error_message=message,
        age=age,
    )


def asked(failure: Failure, settings: Settings = SETTINGS, **options: Any) -> tuple[float, str]:
    """What the queue would do of it."""
    answer = Hooks((), {"backoff": options}).retry_delay(failure, settings)
    return answer.seconds, answer.reason


def by(*, attempts: int = 1, error: Any = UNKNOWN, age: float = 60.0, **policy: Any) -> tuple[float, str]:
    return asked(failure(attempts, error, age=age), policy=RetryPolicy(**policy))


class TestDefault:
    def test_doubles_up_to_the_cap(self) -> None:
        assert [asked(failure(n)) for n in range(1, 9)] == [
            (x, "exponential backoff") for x in (5, 10, 20, 40, 80, 160, 300, 300)
        ]

    @pytest.mark.parametrize("attempts", [1, 60, 1024, 1025, 10_000, 2**31 - 1])
    def test_never_overflows(self, attempts: int) -> None:
        assert asked(failure(attempts))[0] == exponential(attempts, 5, 300)

    @pytest.mark.parametrize("jitter", [0.1, 0.5, 1])
    def test_jitter_only_takes_off_and_at_most_its_fraction(self, jitter: float) -> None:
        one = Hooks((), {"backoff": {"jitter": jitter}})
        for attempts in (1, 3, 20):
            whole = exponential(attempts, 5, 300)
            delays = [one.retry_delay(failure(attempts), SETTINGS).seconds for _ in range(30)]
            assert all(whole * (1 - jitter) <= x <= whole for x in delays)
            assert len(set(delays)) > 20
        assert asked(failure(), jitter=jitter)[1] == "exponential backoff with jitter"

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            ({"jitter": 1.1}, "jitter"),
            ({"jitter": -0.1}, "jitter"),
            ({"jitter": math.nan}, "jitter"),
            ({"jitter": True}, "jitter"),
            ({"jitter": "0.5"}, "jitter"),
            ({"honour_retry_after": 1}, "honour_retry_after"),
            ({"policy": "wait_fixed"}, "policy"),
            ({"policy": t.wait_fixed(1)}, "policy"),
            ({"kinds": ["k"]}, "kinds"),
            ({"kinds": {"k": {"wait": 5}}}, "'k'"),
            ({"jiter": 0.5}, "'jitter'"),
        ],
    )
    def test_wrong_options_are_refused_by_name(self, options: dict[str, Any], name: str) -> None:
        with pytest.raises(PluginError, match="'backoff'") as refused:
            asked(failure(), **options)
        assert name in str(refused.value)

    @pytest.mark.parametrize(
        ("policy", "field"),
        [
            ({"wait": 5}, "wait"),
            ({"wait": t.wait_fixed}, "wait"),
            ({"stop": True}, "stop"),
            ({"retry": OSError}, "retry"),
            ({"retry": async_retry(lambda _: True)}, "retry"),  # type: ignore[arg-type,return-value]
        ],
    )
    def test_what_is_no_policy_is_refused(self, policy: dict[str, Any], field: str) -> None:
        with pytest.raises(InvalidRun) as refused:
            RetryPolicy(**policy)
        assert refused.value.field == field


WAITS: dict[str, tuple[Any, int, float, float]] = {
    "fixed": (t.wait_fixed(7), 4, 7, 7),
    "none": (t.wait_none(), 4, 0, 0),
    "random": (t.wait_random(2, 4), 4, 2, 4),
    "sum": (t.wait_fixed(3) + t.wait_random(0, 2), 4, 3, 5),
    "chain": (t.wait_chain(t.wait_fixed(1), t.wait_fixed(2)), 1, 1, 1),
    "end of a chain": (t.wait_chain(t.wait_fixed(1), t.wait_fixed(2)), 4, 2, 2),
    "incrementing": (t.wait_incrementing(start=1, increment=2), 4, 7, 7),
    "exponential": (t.wait_exponential(multiplier=2, max=50), 4, 16, 16),
    "exponential, capped": (t.wait_exponential(multiplier=2, max=50), 400, 50, 50),
    "random exponential": (t.wait_random_exponential(max=50), 4, 0, 8),
    "jitter": (t.wait_exponential_jitter(max=50, jitter=2), 4, 8, 10),
    "exception": (t.wait_exception(lambda e: len(str(e))), 4, 7, 7),
    "function": (lambda state: state.attempt_number * 2, 4, 8, 8),
    "duration": (lambda state: timedelta(minutes=1), 4, 60, 60),
}


@pytest.mark.parametrize("name", WAITS)
def test_waits_of_tenacity(name: str) -> None:
    wait, attempts, low, high = WAITS[name]
    seconds, reason = by(attempts=attempts, wait=wait)
    assert low <= seconds <= high
    assert reason.startswith("<lambda>" if name in ("function", "duration") else "wait_")


@pytest.mark.parametrize("attempts", [1, 30, 64, 1024, 1025, 10_000])
@pytest.mark.parametrize(
    "wait",
    [
        t.wait_exponential(),
        t.wait_exponential(multiplier=0.5, exp_base=1.5),
        t.wait_exponential(max=math.inf),
        t.wait_exponential_jitter(),
        t.wait_random_exponential(),
        t.wait_incrementing(increment=10**12),
        t.wait_fixed(1) + t.wait_exponential(),
        lambda state: 5.0 * 2.0**state.attempt_number,
        lambda state: 5 * 2**state.attempt_number,
    ],
)  # fmt: skip
def test_growth_without_end_comes_to_the_cap(wait: Any, attempts: int) -> None:
    seconds, _ = by(attempts=attempts, wait=wait)
    assert 0 <= seconds <= 10 * 366 * DAY
    if attempts >= 1024 and not isinstance(wait, t.wait_random_exponential):
        assert seconds == SETTINGS.retry_cap


@pytest.mark.parametrize("seconds", [-1, -0.001, math.nan, "5", True, object()])
def test_what_is_no_duration_is_an_error_that_says_so(seconds: Any) -> None:
    with pytest.raises(PluginError, match="runqueue_retry_delay returned a delay: "):
        by(wait=lambda _: seconds)


class Falsy(Exception):
    def __len__(self) -> int:
        return 0


STOPS: dict[str, tuple[Any, dict[str, Any], bool]] = {
    "attempt, before": (t.stop_after_attempt(3), {"attempts": 2}, False),
    "attempt": (t.stop_after_attempt(3), {"attempts": 3}, True),
    "age, before": (t.stop_after_delay(100), {"age": 99}, False),
    "age": (t.stop_after_delay(100), {"age": 101}, True),
    "age with the next wait, before": (t.stop_before_delay(100), {"age": 92, "wait": t.wait_fixed(7)}, False),
    "age with the next wait": (t.stop_before_delay(100), {"age": 94, "wait": t.wait_fixed(7)}, True),
    "any": (t.stop_after_attempt(3) | t.stop_after_delay(100), {"age": 101}, True),
    "all": (t.stop_after_attempt(3) & t.stop_after_delay(100), {"age": 101}, False),
    "never": (t.stop_never, {"attempts": 10_000}, False),
    "idle": (lambda state: state.idle_for >= 50, {"age": 60}, True),
}
RETRIES: dict[str, tuple[Any, Any, bool]] = {
    "type": (t.retry_if_exception_type(OSError), ConnectionError("x"), True),
    "another type": (t.retry_if_exception_type(OSError), ValueError("x"), False),
    "any type": (t.retry_if_exception_type((OSError, ValueError)), ValueError("x"), True),
    "not that type": (t.retry_if_not_exception_type(OSError), ConnectionError("x"), False),
    "unless": (t.retry_unless_exception_type(OSError), ConnectionError("x"), False),
    "message": (t.retry_if_exception_message(match="overloaded"), ValueError("overloaded now"), True),
    "another message": (t.retry_if_exception_message(match="overloaded"), ValueError("refused"), False),
    "or": (t.retry_if_exception_type(OSError) | t.retry_if_exception_message("x"), ValueError("x"), True),
    "and": (t.retry_if_exception_type(OSError) & t.retry_if_exception_message("x"), ValueError("x"), False),
    "never": (t.retry_never, ValueError("x"), False),
    "always": (t.retry_always, ValueError("x"), True),
    "text": (t.retry_if_exception_message("no luck"), None, True),
    "code of a text": (t.retry_if_exception(lambda e: getattr(e, "code", "") == "ValueError"), None, True),
    "falsy exception": (t.retry_if_exception_type(Falsy), Falsy(), True),
    "SystemExit": (t.retry_if_exception_type(Exception), SystemExit(1), False),
}  # fmt: skip


@pytest.mark.parametrize("name", STOPS)
def test_stops_of_tenacity(name: str) -> None:
    stop, told, stops = STOPS[name]
    seconds, reason = by(**{"wait": t.wait_fixed(1), "stop": stop, **told})
    assert (seconds == math.inf) == stops
    if stops:
        assert reason.startswith("stopped: ")
    if name == "any":
        assert reason == "stopped: stop_any(stop_after_attempt, stop_after_delay)"


@pytest.mark.parametrize("name", RETRIES)
def test_retries_of_tenacity(name: str) -> None:
    retry, error, retried = RETRIES[name]
    seconds, reason = by(error=error, retry=retry)
    assert (seconds == math.inf) == (not retried)
    assert reason.startswith("exponential backoff" if retried else "not retried: ")


def test_a_recorded_failure_stands_for_a_text() -> None:
    seen = []
    by(error=None, wait=lambda state: seen.append(state.outcome.exception()) or 1)
    assert isinstance(seen[0], RecordedFailure)
    assert (seen[0].code, str(seen[0])) == ("ValueError", "no luck")


def test_policy_that_names_no_wait_leaves_it_to_the_default() -> None:
    assert by(attempts=3, stop=t.stop_after_attempt(9)) == (20, "exponential backoff")
    assert by(attempts=3) == (20, "exponential backoff")
    wait = t.wait_exception(retry_after)  # type: ignore[arg-type]
    assert by(attempts=3, wait=wait) == (20, "exponential backoff")
    assert by(attempts=3, wait=wait, error=told(7)) == (7, "wait_exception")


def test_kinds_have_policies_of_their_own() -> None:
    options = {
        "policy": RetryPolicy(wait=t.wait_fixed(1)),
        "kinds": {"slow": RetryPolicy(wait=t.wait_fixed(900)), "once": RetryPolicy(retry=t.retry_never)},
    }
    found = [asked(failure(kind=x), **options)[0] for x in ("slow", "once", "other")]
    assert found == [900, math.inf, 1]


def http(headers: Any, *, on: str = "response") -> Exception:
    error = RuntimeError("429")
    setattr(error, on, SimpleNamespace(headers=headers) if on == "response" else headers)
    return error


def told(value: Any) -> Exception:
    error = RuntimeError("slow down")
    error.retry_after = value  # type: ignore[attr-defined]
    return error


def caused(cause: BaseException) -> Exception:
    error = RuntimeError("the model failed")
    error.__cause__ = cause
    return error


class Hostile(Exception):
    @property
    def retry_after(self) -> float:
        raise RuntimeError("no")


NOW = datetime(2030, 1, 31, 9, tzinfo=UTC)
ASKED: dict[str, tuple[BaseException, float | None]] = {
    "attribute": (told(17), 17),
    "attribute, fraction": (told(1.5), 1.5),
    "attribute, duration": (told(timedelta(minutes=2)), 120),
    "attribute, text": (told("30"), 30),
    "header": (http({"Retry-After": "17"}), 17),
    "header in small letters": (http({"retry-after": "17"}), 17),
    "header, fraction": (http({"Retry-After": " 0.25 "}), 0.25),
    "header of the error itself": (http({"Retry-After": "17"}, on="headers"), 17),
    "date": (http({"Retry-After": format_datetime(NOW, usegmt=True), "Date": "Thu, 31 Jan 2030 08:58:00 GMT"}), 120),
    "date in the past": (http({"Retry-After": "Thu, 31 Jan 2030 08:00:00 GMT", "Date": format_datetime(NOW)}), 0),
    "cause": (caused(caused(http({"Retry-After": "17"}))), 17),
    "group": (ExceptionGroup("x", [ValueError("x"), told(3), ExceptionGroup("y", [told(5)])]), 5),
    "nothing": (ValueError("x"), None),
    "no header": (http({}), None),
    "no mapping": (http(17), None),
    "no time": (http({"Retry-After": "soon"}), None),
    "NaN": (told(math.nan), None),
    "endless": (told(math.inf), None),
    "a flag": (told(True), None),
    "a method": (told(lambda: 5), None),
    "negative": (told(-5), 0),
    "hostile": (Hostile(), None),
}


@pytest.mark.parametrize("name", ASKED)
def test_retry_after_is_read_wherever_it_is(name: str) -> None:
    error, seconds = ASKED[name]
    assert retry_after(error) == seconds


def test_retry_after_as_a_date_counts_from_now_where_the_response_has_none() -> None:
    asked_for = retry_after(http({"Retry-After": format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)}))
    assert asked_for == pytest.approx(3600, abs=60)


def test_circular_causes_end() -> None:
    first, second = caused(ValueError("x")), ValueError("y")
    first.__cause__, second.__cause__ = second, first
    assert retry_after(first) is None


class TestRetryAfter:
    def test_is_the_least_that_is_waited(self) -> None:
        assert asked(failure(1, told(17))) == (17, "the server asked for 17 s")
        assert asked(failure(4, told(17))) == (40, "exponential backoff")

    def test_counts_beyond_the_cap_up_to_a_day(self) -> None:
        assert asked(failure(1, told(3600))) == (3600, "the server asked for 3600 s")
        assert asked(failure(1, told(10**6))) == (DAY, "the server asked for 1e+06 s, cut to a day")

    def test_jitter_is_added_to_it(self) -> None:
        one = Hooks((), {"backoff": {"jitter": 0.5}})
        delays = [one.retry_delay(failure(1, told(100)), SETTINGS).seconds for _ in range(30)]
        assert all(100 <= x <= 150 for x in delays)
        assert len(set(delays)) > 20
        assert asked(failure(1, told(DAY)), jitter=0.5)[0] == DAY

    def test_can_be_switched_off(self) -> None:
        assert asked(failure(1, told(17)), honour_retry_after=False) == (5, "exponential backoff")

    def test_in_a_policy_is_up_to_its_wait(self) -> None:
        wait = t.wait_exception(lambda error: retry_after(error) or 2) + t.wait_fixed(1)
        assert by(error=told(17), wait=wait) == (18, "wait_combine(wait_exception, wait_fixed)")
        assert by(error=None, wait=wait)[0] == 3


def reasons(queue: RunQueue, run: Run) -> list[Any]:
    """What the events say of each failed attempt."""
    return [x.data for x in queue.events(run.id) if x.type in ("run.failed", "run.dead")]


def of_policy(engine: Engine, settings: Settings, claim: str = "reaper", **options: Any) -> RunQueue:
    return RunQueue(engine, claim=claim, settings=settings, plugin_options={"backoff": options})


def test_delay_and_reason_are_recorded_by_fail(engine: Engine, policy: str, settings: Settings) -> None:
    queue = of_policy(engine, settings, policy, policy=RetryPolicy(wait=t.wait_fixed(60), stop=t.stop_after_attempt(2)))
    run = queue.enqueue("k", tenant_id="t", max_attempts=9)
    [claimed] = queue.claim("w")
    failed = queue.fail(claimed.lease, "no luck")
    assert failed.status is RunStatus.PENDING
    assert 50 < (failed.available_at - failed.updated_at).total_seconds() <= 60
    assert reasons(queue, run) == [{"error_code": "error", "attempts": 1, "delay": 60, "reason": "wait_fixed"}]


@pytest.mark.parametrize("wait", [-1, math.nan, "soon"])
def test_policy_that_answers_nonsense_changes_nothing(engine: Engine, settings: Settings, wait: Any) -> None:
    queue = of_policy(engine, settings, policy=RetryPolicy(wait=lambda _: wait))
    run = queue.enqueue("k", tenant_id="t")
    [claimed] = queue.claim("w")
    with pytest.raises(PluginError, match="delay"):
        queue.fail(claimed.lease, "no luck")
    assert queue.get(run.id) == claimed.run
    assert reasons(queue, run) == []
    queue.release(claimed.lease)


def test_worker_records_what_the_policy_chose(engine: Engine, settings: Settings) -> None:
    queue = of_policy(
        engine,
        replace(settings, retry_base=0.01, retry_cap=0.02),
        kinds={
            "thrice": RetryPolicy(wait=t.wait_fixed(0.01), stop=t.stop_after_attempt(3)),
            "hopeless": RetryPolicy(retry=t.retry_if_not_exception_type(ZeroDivisionError)),
        },
    )

    @queue.handler("thrice")
    def thrice(run: Any) -> None:
        raise ValueError("no luck")

    @queue.handler("hopeless")
    async def hopeless(run: Any) -> float:
        return 1 / 0

    @queue.handler("limited")
    async def limited(run: Any) -> None:
        raise caused(http({"Retry-After": "900"}))

    @queue.handler("plain")
    def plain(run: Any) -> None:
        raise ValueError("no luck")

    runs = {kind: queue.enqueue(kind, tenant_id="t", max_attempts=5) for kind in queue.core.handlers}
    with running(Worker(queue)):
        for kind in ("thrice", "hopeless", "plain"):
            assert queue.wait(runs[kind].id, 15).status is RunStatus.DEAD
        eventually(lambda: reasons(queue, runs["limited"]), 10, what="the first failure")
    found = {kind: [(x.get("delay"), x["reason"]) for x in reasons(queue, run)] for kind, run in runs.items()}
    assert found == {
        "thrice": [(0.01, "wait_fixed"), (0.01, "wait_fixed"), (None, "stopped: stop_after_attempt")],
        "hopeless": [(None, "not retried: retry_if_not_exception_type")],
        "limited": [(900, "the server asked for 900 s")],
        "plain": [*[(ANY, "exponential backoff")] * 4, (None, "no attempt is left")],
    }
    assert [x["delay"] for x in reasons(queue, runs["plain"])[:-1]] == [0.01, 0.02, 0.02, 0.02]


def test_worker_waits_for_the_cap_where_a_policy_fails(
    engine: Engine, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "runqueue")
    wait = t.wait_exception(lambda error: error.retry_after)  # type: ignore[attr-defined]
    queue = of_policy(engine, replace(settings, retry_cap=77), policy=RetryPolicy(wait=wait))

    @queue.handler("k")
    def k(run: Any) -> None:
        raise ValueError("no luck")

    run = queue.enqueue("k", tenant_id="t")
    with running(Worker(queue)):
        eventually(lambda: reasons(queue, run), 10, what="the failure")
    assert [x["delay"] for x in reasons(queue, run)] == [77]
    assert "the retry policy failed; the run waits for the cap: AttributeError" in caplog.text
