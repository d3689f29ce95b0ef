"""The acts: work for several tenants, a killed worker, a cancelled run, and a run that kills whoever takes it."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

from sqlalchemy import Engine
from sqlalchemy.schema import CreateSchema

from runqueue import NewRun
from runqueue.demo.install import MAIN, RISKY, steps
from runqueue.demo.stage import Seen, Stage
from runqueue.demo.verdict import Cast
from runqueue.schema import migrate

WORKERS, CONCURRENCY = 3, 2

LONG, LONGEST = "statements 7", ". 100"
RUNS = [
    NewRun(kind="review", input={"task": LONG}, tenant_id="acme", priority=2),
    NewRun(kind="review", input={"task": LONGEST}, tenant_id="globex", priority=1),
    NewRun(kind="poison", input={"task": "crash"}, tenant_id="initech", queue=RISKY),
    NewRun(kind="review", input={"task": "worker 3"}, tenant_id="acme"),
    NewRun(kind="review", input={"task": "operations 3"}, tenant_id="globex"),
    NewRun(kind="review", input={"task": "schema 3"}, tenant_id="initech"),
    NewRun(kind="review", input={"task": "policies 3"}, tenant_id="initech"),
    NewRun(kind="audit", input={"task": "versions"}, tenant_id="acme"),
    NewRun(kind="audit", input={"task": "versions"}, tenant_id="globex"),
    NewRun(kind="audit", input={"task": "versions"}, tenant_id="initech"),
]


def prepare(engine: Engine) -> None:
    """Make the tables: the queue's, and the application's own."""
    migrate.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(CreateSchema("runqueue_demo"))
        steps.metadata.create_all(connection)


def play(stage: Stage) -> Cast:
    """The whole story. Returns who was who; raises where it does not go on."""
    with stage.engine.begin() as connection:  # all of them, or none: it is the application's transaction
        runs = stage.queue.enqueue_many(RUNS, connection=connection)
    stage.names.update({run.id: f"run {number}" for number, run in enumerate(runs, 1)})
    long, longest, poison = (run.id for run in runs[:3])
    enqueued = Counter(run.tenant_id for run in runs)
    stage.view.say(f"enqueued {len(runs)} runs for {', '.join(sorted(enqueued))}")

    pids = [stage.fleet.start(MAIN, CONCURRENCY) for _ in range(WORKERS)]
    stage.view.say(f"started workers {', '.join(map(str, pids))}, and {stage.fleet.start(RISKY, 1)} for what may crash")

    killed = kill_a_worker(stage, long)
    cancel_a_run(stage, longest)
    stage.until(lambda seen: all(run.status.terminal for run in seen.values()), "the end of all runs")
    stage.view.say("all runs have ended")
    return Cast(resumed=long, cancelled=longest, poison=poison, killed_pid=killed, enqueued=enqueued)


def kill_a_worker(stage: Stage, run_id: UUID) -> int:
    """SIGKILL the worker that has the run, in the middle of it, and see the run end in another one."""
    name = stage.names[run_id]

    def under_way(seen: dict[UUID, Seen]) -> bool:
        return seen[run_id].steps >= 4 and seen[run_id].worker in stage.fleet.pids

    seen = stage.until(under_way, f"some steps of {name}")[run_id]
    killed = seen.worker
    assert killed is not None
    stage.fleet.kill(killed)
    stage.view.say(f"SIGKILL to worker {killed}, after {seen.steps} steps of {name}; soon its lease runs out")

    def taken_over(seen: dict[UUID, Seen]) -> bool:
        return seen[run_id].worker not in (None, killed)

    seen = stage.until(taken_over, f"another worker for {name}")[run_id]
    stage.view.say(f"worker {seen.worker} has taken over {name}, at {seen.steps} committed steps")
    return killed


def cancel_a_run(stage: Stage, run_id: UUID) -> None:
    """Ask a run to stop while a worker is busy with it."""
    name = stage.names[run_id]

    def under_way(seen: dict[UUID, Seen]) -> bool:
        return seen[run_id].steps >= 6 and seen[run_id].worker in stage.fleet.pids

    seen = stage.until(under_way, f"some steps of {name}")[run_id]
    stage.queue.cancel(run_id, "no longer wanted")
    stage.view.say(f"asked {name} to stop, after {seen.steps} steps in worker {seen.worker}")
    stage.until(lambda seen: seen[run_id].status.terminal, f"the end of {name}")
