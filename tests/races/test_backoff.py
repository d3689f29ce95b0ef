"""Retry delays: never negative, never above the cap, never an error, in Python and in SQL."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conformance.driver import claim_one, expire
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import literal, select

from runqueue import RunQueue, RunStatus
from runqueue.statements.parts import in_seconds, lost_delay
from runqueue_plugins.backoff import exponential

ATTEMPTS = [0, 1, 2, 30, 31, 32, 43, 44, 62, 63, 64, 1023, 1024, 1100, 10**6, 2**31 - 1]
BASES = [0.0, 0.001, 5.0, 86400.0]
CAPS = [0.0, 60.0, 86400.0]


def in_sql(connection, attempts, base, cap):
    statement = select(in_seconds(lost_delay(literal(attempts))))
    return connection.execute(statement, {"retry_base": base, "retry_cap": cap}).scalar_one()


@hypothesis_settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(st.sampled_from(ATTEMPTS), st.integers(0, 2**31 - 1)),
    st.one_of(st.sampled_from(BASES), st.floats(0, 1e6)),
    st.one_of(st.sampled_from(CAPS), st.floats(0, 1e8)),
)
def test_a_delay_is_between_nothing_and_the_cap(attempts, base, cap):
    delay = exponential(attempts, base, cap)
    assert 0 <= delay <= cap
    assert delay <= exponential(attempts + 1, base, cap)
    if base and attempts > 60:
        assert delay == min(cap, base * 2.0**60)


def test_the_first_delays_double():
    assert [exponential(n, 5, 300) for n in range(1, 9)] == [5, 10, 20, 40, 80, 160, 300, 300]


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("base", BASES)
def test_sql_and_python_agree(engine, base, cap):
    with engine.connect() as connection:
        for attempts in ATTEMPTS:
            delay = in_sql(connection, attempts, base, cap)
            assert 0 <= delay <= cap
            if base == 0 or base * 2.0**30 >= cap:
                assert delay == pytest.approx(exponential(attempts, base, cap), abs=1e-5)


@pytest.mark.parametrize("how", ["fail", "lost"])
@pytest.mark.audit(skip=("INV3",))
def test_the_two_thousandth_attempt_is_retried_within_the_cap(engine, policy, settings, facts, how):
    queue = RunQueue(engine, claim=policy, settings=replace(settings, retry_base=5, retry_cap=300))
    run = queue.enqueue("k", tenant_id="t", max_attempts=5000)
    facts.sql("update runqueue.agent_runs set attempts = 1999")
    lease = claim_one(queue).lease
    if how == "fail":
        assert queue.fail(lease, "x").status is RunStatus.PENDING
        [[wait]] = facts.sql("select extract(epoch from available_at - clock_timestamp()) from runqueue.agent_runs")
        assert 290 < wait <= 300
    else:
        facts.sql("update runqueue.agent_runs set locked_until = clock_timestamp() - interval '1 s'")
        queue.reap()
        assert queue.claim("w") == []
        if policy == "reaper":
            facts.sql("update runqueue.agent_runs set available_at = created_at")
        else:
            expire(facts, lease)
        assert claim_one(queue).run.attempts == 2001
    assert queue.get(run.id).max_attempts == 5000
