"""What the tests of the suites work with: a database, queues as several processes would have them, and direct looks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from uuid import UUID

from sqlalchemy import Connection, Engine, Executable, NullPool, Select, create_engine, event, make_url, text
from sqlalchemy.schema import CreateIndex

from runqueue.core import Core
from runqueue.queue import RunQueue
from runqueue.testing import audit
from runqueue.testing.databases import at_rest, autocommit, install, new_database
from runqueue.testing.faults import Faults
from runqueue.testing.plans import Plan, explain
from runqueue.types import ClaimedRun, Lease, NewRun, Run

T = TypeVar("T")


class Databases:
    """Databases of a server, each made from a template that has what some plugins need. Used in a `with`."""

    def __init__(self, server_url: str) -> None:
        self._server_url = server_url
        self._templates: dict[tuple[str, ...], str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Databases:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def template(self, core: Core) -> str:
        """The name of a database with the schema, what the policy and the plugins need, and the audit."""
        needs = (*sorted(str(CreateIndex(x)) for x in core.indexes()), *core.migrations())
        if needs not in self._templates:
            url = self._stack.enter_context(new_database(self._server_url))
            install(create_engine(url, poolclass=NullPool), core)
            self._templates[needs] = str(make_url(url).database)
        return self._templates[needs]

    @contextmanager
    def audited(self, core: Core, *, skip: Sequence[str] = (), off: bool = False) -> Any:
        """The URL of a database of one's own. Afterwards the invariants must hold, and nobody be busy in it."""
        with new_database(self._server_url, self.template(core)) as url:
            yield url
            if "INV7" not in skip:
                at_rest(url)
            if not off:
                with autocommit(url) as connection:
                    audit.check(connection, skip=skip)


class Rig:
    """One test's database, and queues on it. `queue` has the plugins under test; `another()` makes one more."""

    def __init__(self, url: str, engine: Engine, make: Callable[..., RunQueue]) -> None:
        self.url = url
        self.engine = engine
        self._make = make
        self.queues: list[RunQueue] = []
        self.queue = self.another()
        self.faults = Faults(url, engine)

    def another(self, **changes: Any) -> RunQueue:
        """A queue as another process has it: it shares nothing with the first but the database."""
        queue = self._make(self.engine, **changes)
        self.queues.append(queue)
        return queue

    def fill(self, count: int, **fields: Any) -> list[Run]:
        """Enqueue so many runs. A callable among `fields` is asked for each of them, with its number."""
        each = [{x: y(n) if callable(y) else y for x, y in fields.items()} for n in range(count)]
        return self.queue.enqueue_many(NewRun(**{"kind": "alpha", "tenant_id": "t", **one}) for one in each)

    def sql(self, statement: str, **values: Any) -> list[Any]:
        """Run a statement in a transaction of its own, past the library."""
        with self.engine.begin() as connection:
            result = connection.execute(text(statement), values)
            return list(result) if result.returns_rows else []

    def load(self, *statements: str, analyze: bool = True) -> None:
        """Run statements that write many runs, unaudited; without `analyze` the statistics stay as they are."""
        trigger = "alter table runqueue.agent_runs {} trigger audit"
        options = "alter table runqueue.agent_runs set (autovacuum_enabled = off)"
        with self.engine.begin() as connection:
            for one in (options, trigger.format("disable"), *statements, trigger.format("enable")):
                connection.exec_driver_sql(one, execution_options={"no_parameters": True})
        with autocommit(self.url) as connection:
            connection.exec_driver_sql(f"vacuum {'analyze' if analyze else ''} runqueue.agent_runs")

    def status(self, run: Run | UUID) -> str:
        """The state of a run."""
        return str(self.queue.get(run.id if isinstance(run, Run) else run).status)

    def lease_of(self, run: Run) -> Lease:
        """The lease of a run that another process holds."""
        now = self.queue.get(run.id)
        if now.locked_until is None:
            raise AssertionError(f"run {run.id} is not leased: it is {now.status}")
        return Lease(now.id, now.fencing_token, now.locked_until)

    def in_flight(self) -> Mapping[str, int]:
        """How many runs of each tenant are leased, at one moment."""
        rows = self.sql("select tenant_id, count(*) from runqueue.agent_runs where status = 'leased' group by 1")
        return {row.tenant_id: row.count for row in rows}

    def everything(self) -> dict[str, list[str]]:
        """Every row of every table of the install, as text."""
        tables = self.sql("select tablename from pg_tables where schemaname = 'runqueue' order by 1")
        return {x: [row[0] for row in self.sql(f'select t::text from runqueue."{x}" t order by 1')] for (x,) in tables}  # noqa: S608

    def take(self, queue: RunQueue, *, limit: int = 10, patience: int = 3, **options: Any) -> list[list[ClaimedRun]]:
        """Claim until nothing came `patience` times in a row; the batches that came."""
        batches, empty = [], 0
        while empty < patience:
            if batch := queue.claim("taker", limit=limit, **options):
                batches.append(batch)
            empty = 0 if batch else empty + 1
        return batches

    def rescue(self, queue: RunQueue, *, limit: int = 100, patience: int = 3, **options: Any) -> list[ClaimedRun]:
        """Sweep and claim, as a worker does, until nothing came `patience` times in a row."""
        taken: list[ClaimedRun] = []
        empty = 0
        while empty < patience:
            queue.reap()
            batch = queue.claim("rescuer", limit=limit, **options)
            taken += batch
            empty = 0 if batch else empty + 1
        return taken

    def plans(self, queue: RunQueue, **options: Any) -> list[tuple[Plan, Plan]]:
        """What the statements of a claim cost: of each the plan for its parameters, and the generic one."""
        queue.claim("warm", queues=["nobody's"])
        seen: list[tuple[Executable, Mapping[str, Any]]] = []

        def note(connection: Connection, clause: Any, multi: Any, params: Any, execution: Any) -> None:
            del connection, multi, execution
            if isinstance(clause, Select):
                seen.append((clause, params))

        event.listen(self.engine, "before_execute", note)
        try:
            queue.claim("planner", **options)
        finally:
            event.remove(self.engine, "before_execute", note)
        with self.engine.connect() as connection:
            return [(explain(connection, x, y), explain(connection, x, y, generic=True)) for x, y in seen]

    def check_observers(self) -> None:
        """No observer of the plugins has raised. AssertionError."""
        raised = {name: n for queue in self.queues for name, n in queue.core.ctx.hooks.errors.items()}
        if raised:
            raise AssertionError(f"observers raised: {raised}; the log says what")


def together(count: int, function: Callable[[int], T]) -> list[T]:
    """Call the function with 0, 1, … in so many threads at once; their results, or the first error that one raised."""
    start = threading.Barrier(count)
    results: dict[int, T] = {}
    errors: list[BaseException] = []

    def work(n: int) -> None:
        try:
            start.wait(30)
            results[n] = function(n)
        except threading.BrokenBarrierError:
            pass  # another one's error broke it
        except BaseException as error:
            errors.append(error)
            start.abort()

    threads = [threading.Thread(target=work, args=(n,), name=f"test-{n}") for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    if len(results) < count:
        raise AssertionError(f"{count - len(results)} of {count} threads did not end")
    return [results[n] for n in range(count)]


def ids(claimed: Iterable[ClaimedRun]) -> list[UUID]:
    """The ids of claimed runs, in order."""
    return [x.run.id for x in claimed]
