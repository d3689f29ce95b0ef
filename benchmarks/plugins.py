"""What plugins cost: claims and drains with and without fairness, aging and observers, and how fair the shares are.

    python benchmarks/plugins.py [--tenants 10000] [--runs 20000] [--whale 500000] [--batch 100] [--repeat 3]

Needs RUNQUEUE_DATABASE_URL, or starts an embedded PostgreSQL of its own. Makes databases of its own, and drops them.
Prints one JSON object a line; rates are medians over the repetitions, in the order ABAB, with their range.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import Engine, create_engine, make_url, text

from runqueue import ClaimedRun, RunQueue, Worker, hookimpl
from runqueue.devdb import database
from runqueue.schema import migrate
from runqueue.worker.engines import Engines

LOAD = text("""
insert into runqueue.agent_runs (id, tenant_id, kind, available_at)
select gen_random_uuid(), 'tenant-' || lpad((n % :tenants)::text, 6, '0'), 'k',
       clock_timestamp() - interval '1 h' + n * interval '1 ms'
from generate_series(1, :runs) n
union all
select gen_random_uuid(), 'whale', 'k', clock_timestamp() - interval '2 h' from generate_series(1, :whale) n
""")


class Observer:
    """Observes every handler, and does nothing."""

    @hookimpl
    def runqueue_run_started(self, run: ClaimedRun) -> None:
        """Nothing."""

    @hookimpl
    def runqueue_run_ended(self, run: ClaimedRun) -> None:
        """Nothing."""


@contextmanager
def loaded(url: str, plugins: Sequence[str | object], tenants: int, runs: int, whale: int) -> Iterator[RunQueue]:
    """A queue on a database of its own, vacuumed and analyzed."""
    name = f"runqueue_bench_{uuid4().hex[:12]}"
    admin = create_engine(url, isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.exec_driver_sql(f'create database "{name}"')
    engine: Engine = create_engine(make_url(url).set(database=name))
    try:
        queue = RunQueue(engine, plugins=plugins)
        migrate.upgrade(engine, indexes=queue.core.indexes())
        with engine.begin() as connection:
            connection.execute(LOAD, {"tenants": tenants, "runs": runs, "whale": whale})
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("vacuum analyze")
            connection.exec_driver_sql("checkpoint")
        yield queue
    finally:
        engine.dispose()
        with admin.connect() as connection:
            connection.exec_driver_sql(f'drop database "{name}" with (force)')
        admin.dispose()


def claim_rate(queue: RunQueue, batch: int, claims: int) -> tuple[float, Counter[str]]:
    """Runs claimed a second by one claimer whose session plans once, as a worker's does; and by tenant."""
    shares = Counter[str]()
    control = Engines(queue, queue.engine, None).control
    for _ in range(12):  # the driver prepares a statement when it is sent for the sixth time
        control.claim("warm up", limit=1, kinds=["k"])
    began = time.perf_counter()
    for _ in range(claims):
        shares.update(x.run.tenant_id for x in control.claim("w", limit=batch, kinds=["k"]))
    took = time.perf_counter() - began
    control.engine.dispose()
    return shares.total() / took, shares


def drain_rate(queue: RunQueue) -> float:
    """Runs a second of one worker whose handler does nothing, until nothing is left."""

    @queue.handler("k")
    async def nothing(run: Any) -> None:
        del run

    worker = Worker(queue, concurrency=200)
    began = time.perf_counter()
    return worker.drain() / (time.perf_counter() - began)


def jain(shares: Counter[str], tenants: int) -> float:
    """Jain's index over all tenants, those without a run too."""
    return sum(shares.values()) ** 2 / (tenants * sum(x * x for x in shares.values()))


def compare(name: str, repeat: int, measures: dict[str, Callable[[], float]]) -> None:
    """Measure in turns, and print the medians, and the ratios to the first."""
    found: dict[str, list[float]] = {x: [] for x in measures}
    for _ in range(repeat):
        for what, measure in measures.items():
            found[what].append(measure())
    medians = {what: statistics.median(x) for what, x in found.items()}
    base = next(iter(medians.values()))
    for what, values in found.items():
        print(
            json.dumps(
                {
                    "bench": name, "what": what, "per_second": round(medians[what]), "min": round(min(values)),
                    "max": round(max(values)), "ratio": round(medians[what] / base, 3),
                }
            ), flush=True,
        )  # fmt: skip


def main() -> None:
    """Run all of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("tenants", 10_000), ("runs", 20_000), ("whale", 500_000), ("batch", 100), ("repeat", 3)):
        parser.add_argument(f"--{option}", type=int, default=default)
    given = parser.parse_args()
    with ExitStack() as stack:
        url = os.environ.get("RUNQUEUE_DATABASE_URL")
        if url is None:
            home = stack.enter_context(tempfile.TemporaryDirectory())
            url = stack.enter_context(database(Path(home)))

        def claims(*plugins: str) -> float:
            with loaded(url, plugins, given.tenants, given.runs, given.whale) as queue:
                return claim_rate(queue, given.batch, given.runs // 2 // given.batch)[0]

        def drains(*plugins: str | object) -> float:
            with loaded(url, plugins, given.tenants, given.runs, 0) as queue:
                return drain_rate(queue)

        compare(
            "claim", given.repeat,
            {"plain": claims, "fairness": lambda: claims("fairness"), "aging": lambda: claims("aging")},
        )  # fmt: skip
        compare(
            "drain", given.repeat,
            {
                "plain": drains, "fairness": lambda: drains("fairness"), "aging": lambda: drains("aging"),
                "observers": lambda: drains(Observer()),
            },
        )  # fmt: skip
        few = 400
        with loaded(url, ["fairness"], few, few * 60, given.whale) as queue:
            _, shares = claim_rate(queue, given.batch, few * 50 // given.batch)
        print(json.dumps({"bench": "shares", "tenants": few + 1, "jain": round(jain(shares, few + 1), 5)}))


if __name__ == "__main__":
    main()
