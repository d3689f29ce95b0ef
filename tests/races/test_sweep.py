"""A sweep over very many lost runs, one of which cannot be moved."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from runqueue import Reaped, RunQueue

FILL = """
insert into runqueue.agent_runs (id, tenant_id, kind) select gen_random_uuid(), 't', 'k' from generate_series(1, {n})
"""
LEASE = """
update runqueue.agent_runs set status = 'leased', attempts = 1, fencing_token = 1, locked_by = 'gone',
    locked_until = clock_timestamp() - interval '1 s', updated_at = clock_timestamp() - interval '1 h'
"""
BAD = """
create function public.bad() returns trigger language plpgsql as $$
begin if new.tenant_id = 'bad' then raise exception 'not this one'; end if; return new; end $$;
create trigger bad before update of status on runqueue.agent_runs for each row execute function public.bad();
update runqueue.agent_runs set tenant_id = 'bad' where id = (select id from runqueue.agent_runs order by id limit 1);
"""


@pytest.fixture
def reaper(engine, settings):
    return RunQueue(engine, claim="reaper", settings=settings)


def lost(engine, count):
    with engine.begin() as connection:
        connection.execute(text(FILL.format(n=count)))
        connection.execute(text(LEASE))


def recover(queue, engine, count, statements=None):
    lost(engine, count)
    batches = 0
    while moved := queue.reap(limit=500).total:
        assert moved <= 500
        batches += 1
    with engine.connect() as connection:
        states = connection.execute(text("select status, count(*) from runqueue.agent_runs group by 1")).all()
    assert states == [("pending", count)]
    assert batches == count // 500


def test_all_lost_runs_come_back_in_bounded_batches(reaper, engine):
    recover(reaper, engine, 5000)


@pytest.mark.slow
def test_a_hundred_thousand_lost_runs_come_back(reaper, engine):
    recover(reaper, engine, 100_000)


def test_a_run_that_cannot_be_moved_does_not_hold_up_the_others(reaper, engine, facts, caplog):
    lost(engine, 300)
    with engine.begin() as connection:
        connection.exec_driver_sql(BAD)
    first = reaper.reap(limit=100)
    assert first == Reaped(pending=99, failed=1)
    [[bad]] = facts.sql("select id from runqueue.agent_runs where tenant_id = 'bad'")
    assert str(bad) in caplog.text
    while reaper.reap(limit=100).pending:
        pass
    assert facts.sql("select status, count(*) from runqueue.agent_runs group by 1 order by 1") == [
        ("leased", 1), ("pending", 299),
    ]  # fmt: skip
    facts.sql("drop trigger bad on runqueue.agent_runs")
    assert reaper.reap() == Reaped(pending=1)


def test_an_error_that_is_not_a_rows_fault_is_raised(reaper, engine):
    from sqlalchemy.exc import DBAPIError

    lost(engine, 3)
    with engine.begin() as connection:
        connection.exec_driver_sql(BAD.replace("raise exception 'not this one'", "raise sqlstate '53100'"))
    with pytest.raises(DBAPIError) as caught:
        reaper.reap()
    assert caught.value.orig.sqlstate == "53100"


def test_two_sweeps_at_once_share_the_runs(reaper, engine, facts):
    from races.forced import race

    lost(engine, 1000)
    answers = race(engine, 4, lambda n: reaper.reap(limit=400))
    while more := reaper.reap(limit=400).pending:
        answers.append(Reaped(pending=more))
    assert sum(x.pending for x in answers) == 1000
    assert facts.sql("select count(*) from runqueue.agent_run_events where type = 'run.lost'") == [(1000,)]
