"""The claims of the demo, and the queries behind them. Column `holds` is the verdict, the others are shown."""

from __future__ import annotations

ENDED = """
select count(*) as runs,
       count(*) filter (where status = 'done') as done,
       count(*) filter (where status = 'cancelled') as cancelled,
       count(*) filter (where status = 'dead') as dead,
       count(*) filter (where status in ('pending', 'leased')) as unfinished,
       count(*) filter (where status = 'done') = count(*) - 2
           and count(*) filter (where status = 'cancelled' and id = :cancelled) = 1
           and count(*) filter (where status = 'dead' and id = :poison) = 1 as holds
from runqueue.agent_runs
"""

TENANTS = """
with ended as (
    select tenant_id, count(*) filter (where finished_at is not null) as ended, count(*) as runs
    from runqueue.agent_runs group by tenant_id
), expected as (
    select key as tenant_id, value::int as runs from jsonb_each_text(cast(:enqueued as jsonb))
)
select string_agg(format('%s %s of %s', tenant_id, coalesce(e.ended, 0), coalesce(x.runs, 0)), ', ' order by tenant_id)
           as ended,
       coalesce(bool_and(coalesce(e.ended = x.runs and e.runs = x.runs, false)), false) as holds
from ended e full join expected x using (tenant_id)
"""

ONCE = """
with counted as (
    select r.id, r.checkpoint_seq as checkpoints, count(s.step) as steps, count(distinct s.step) as different,
           coalesce(max(s.step), 0) as last, coalesce(min(s.step), 1) as first,
           (select count(*) from runqueue.agent_run_events e where e.run_id = r.id and e.type = 'step') as events
    from runqueue.agent_runs r left join runqueue_demo.steps s on s.run_id = r.id
    group by r.id
)
select sum(steps) as steps, sum(steps - different) as repeated, sum(last - different) as missing,
       sum(steps) > 0 and bool_and(
           steps = different and first = 1 and last = steps and steps = checkpoints and steps = events
       ) as holds
from counted
"""

RESULTS = """
select count(*) as finished,
       count(*) > 0 and bool_and(coalesce(
           (r.result_json ->> 'steps')::int = (select count(*) from runqueue_demo.steps s where s.run_id = r.id)
           and length(r.result_json ->> 'answer') > 0, false)) as holds
from runqueue.agent_runs r where r.status = 'done'
"""

RESUMED = """
with step as (
    select s.*, c.fencing_token as token
    from runqueue_demo.steps s
    left join runqueue.agent_run_checkpoints c on c.run_id = s.run_id and c.seq = s.step
    where s.run_id = :resumed
), parts as (
    select count(*) as steps, count(distinct step) as different, max(step) as last,
           count(*) filter (where attempt not in (1, 2)) as others,
           max(step) filter (where attempt = 1) as last_before, min(step) filter (where attempt = 2) as first_after,
           min(token) filter (where attempt = 1) as first_token, min(token) filter (where attempt = 2) as second_token,
           min(pid) filter (where attempt = 1) as first_pid, min(pid) filter (where attempt = 2) as second_pid,
           count(distinct (attempt, token, pid)) as holders, count(token) as fenced
    from step
), lost as (
    select count(*) as times from runqueue.agent_run_events where run_id = :resumed and type = 'run.lost'
)
select r.attempts,
       format('1 to %s by worker %s with token %s', last_before, first_pid, first_token) as steps,
       format('%s to %s by worker %s with token %s', first_after, last, second_pid, second_token) as then,
       r.status = 'done' and r.attempts = 2 and lost.times = 1
           and steps = different and steps = last and others = 0 and fenced = steps and holders = 2
           and first_after = last_before + 1 and second_token > first_token
           and first_pid = :killed and second_pid <> :killed as holds
from runqueue.agent_runs r, parts, lost where r.id = :resumed
"""

CANCELLED = """
with stopped as (
    select max(seq) filter (where type = 'run.cancelled') as stopped_at,
           max(seq) filter (where type = 'run.cancel_requested') as asked_at,
           max(seq) as last, count(*) filter (where type = 'step') as steps
    from runqueue.agent_run_events where run_id = :cancelled
), written as (
    select count(*) as steps, max(at) as last from runqueue_demo.steps where run_id = :cancelled
)
select written.steps as steps_before, stopped.last - stopped.stopped_at as events_after,
       round(1000 * extract(epoch from r.finished_at - r.cancel_requested_at)) as milliseconds_to_stop,
       r.status = 'cancelled' and r.result_json is null and r.locked_by is null
           and stopped.asked_at < stopped.stopped_at and stopped.stopped_at = stopped.last
           and stopped.last = r.event_seq and written.steps > 0 and written.steps = stopped.steps
           and written.last < r.finished_at as holds
from runqueue.agent_runs r, stopped, written where r.id = :cancelled
"""

POISON = """
with story as (
    select count(distinct data_json ->> 'pid') filter (where type = 'started') as workers,
           count(*) filter (where type = 'run.lost') as lost, count(*) filter (where type = 'run.dead') as died
    from runqueue.agent_run_events where run_id = :poison
)
select story.workers as workers_killed, r.attempts, r.max_attempts, r.status, r.error_code,
       r.status = 'dead' and r.error_code = 'lease_expired' and r.attempts = r.max_attempts and r.result_json is null
           and story.workers = r.max_attempts and story.lost = r.max_attempts - 1 and story.died = 1 as holds
from runqueue.agent_runs r, story where r.id = :poison
"""

SPARED = """
with other as (
    select r.attempts,
           (select count(*) from runqueue.agent_run_events e where e.run_id = r.id and e.type = 'run.lost') as lost,
           (select count(*) from runqueue.agent_run_events e where e.run_id = r.id and e.type = 'run.failed') as failed,
           (select count(*) from runqueue.agent_run_events e where e.run_id = r.id and e.type = 'started'
                and (e.data_json ->> 'attempt')::int < r.attempts and (e.data_json ->> 'pid')::int <> :killed) as taken
    from runqueue.agent_runs r where r.id <> :poison
)
select count(*) filter (where attempts = 1) as one_lease,
       count(*) filter (where attempts = 2) as two_leases,
       count(*) filter (where attempts > 2) as more, sum(failed) as failures,
       count(*) > 0 and bool_and(attempts between 1 and 2 and lost = attempts - 1 and failed = 0 and taken = 0) as holds
from other
"""

GAPLESS = """
with stream as (
    select r.id, r.event_seq as expected, count(e.seq) as events, coalesce(min(e.seq), 1) as first,
           coalesce(max(e.seq), 0) as last, count(distinct e.seq) as different
    from runqueue.agent_runs r left join runqueue.agent_run_events e on e.run_id = r.id
    group by r.id
)
select sum(events) as events, sum(last - different) as gaps,
       sum(events) > 0 and bool_and(first = 1 and last = events and different = events and events = expected) as holds
from stream
"""

CLAIMS = {
    "Every run ended: one cancelled, one dead, all others done.": ENDED,
    "Every tenant's runs ended, as many as were enqueued.": TENANTS,
    "No step was committed twice, and none is missing.": ONCE,
    "What the finished runs report agrees with the steps that were committed.": RESULTS,
    "The run of the killed worker went on in another worker where it stood, under a newer fencing token.": RESUMED,
    "The cancelled run stopped, and nothing was written for it afterwards.": CANCELLED,
    "The run that kills its workers is dead, as its attempts are used up.": POISON,
    "No other run failed, and only runs of the killed worker needed a second lease.": SPARED,
    "The events of each run are numbered 1, 2, 3 and so on without a gap.": GAPLESS,
}
