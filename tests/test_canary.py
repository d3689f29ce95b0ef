"""A canary is put into every place where a user can put a secret, and must not be found in what is kept or shown.

Each canary has a number of its own, so that a leak names its place. Identifiers (tenants, kinds, queues, keys) are no
such places: they are stored as they are.
"""

from __future__ import annotations

import json
import linecache
import logging
import threading
from collections import Counter
from collections.abc import Callable
from itertools import cycle
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import Engine, text
from support.cli import Call, caller
from support.here import running
from support.postgres import free_port
from support.tools import eventually

from runqueue import (
    Discard,
    Failure,
    NewRun,
    Retry,
    RetryDelay,
    Run,
    RunContext,
    RunQueue,
    Settings,
    Snooze,
    SyncRunContext,
    Worker,
    hookimpl,
)

SHAPES: dict[str, Callable[[str], str]] = {
    "key of a service": lambda x: f"sk-proj-{x}abcDEF1234567890",
    "JWT": lambda x: f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{x}",
    "bearer": lambda x: f"sent Authorization: Bearer {x}",
    "DSN": lambda x: f"postgresql+psycopg://app:{x}@db/app",
    "AWS": lambda x: f"AKIA{x}EXAMPLE",
    "password": lambda x: f"password={x}",
    "JSON": lambda x: json.dumps({"user": "ada", "api_key": x}),
}


_NEXT = cycle(SHAPES)


def shapes(count: int) -> list[str]:
    """The next few of the shapes, in turn."""
    return [next(_NEXT) for _ in range(count)]


class Canaries:
    """All that were planted, by what is to be looked for."""

    def __init__(self) -> None:
        self.planted: dict[str, str] = {}
        self._lock = threading.Lock()

    def plant(self, place: str, shape: str) -> str:
        with self._lock:
            needle = f"C4NARY{len(self.planted):04d}"
            self.planted[needle] = f"{place}, as {shape}"
        return SHAPES[shape](needle)

    def found_in(self, *texts: str) -> list[str]:
        return sorted({place for one in texts for needle, place in self.planted.items() if needle in one})

    def places(self) -> Counter[str]:
        return Counter(x.partition(", as ")[0] for x in self.planted.values())


class WithSecretText(Exception):
    def __init__(self, told: str) -> None:
        self.told = told

    def __str__(self) -> str:
        return f"failed with {self.told}"


def chained(canary: str) -> None:
    raise RuntimeError("outer") from ValueError(canary)


def while_handling(canary: str) -> None:
    try:
        raise ValueError(canary)
    except ValueError:
        raise RuntimeError("outer")  # noqa: B904


def noted(canary: str) -> None:
    error = ValueError("see the note")
    error.add_note(canary)
    raise error


def line_of_code(canary: str) -> None:
    """A traceback quotes it."""
    name = f"<agent {uuid4()}>"
    linecache.cache[name] = (1, None, [f"raise RuntimeError(len({canary!r}))"], name)
    exec(compile(linecache.cache[name][2][0], name, "exec"))


def raising(make: Callable[[str], BaseException]) -> Callable[[str], None]:
    def fault(canary: str) -> None:
        raise make(canary)

    return fault


FAULTS: dict[str, Callable[[str], Any]] = {
    "message": raising(ValueError),
    "second argument": raising(lambda x: ValueError("first", x)),
    "structured argument": raising(lambda x: ValueError({"tool": ["call", x]})),
    "cause": chained,
    "context": while_handling,
    "note": noted,
    "member of a group": raising(lambda x: ExceptionGroup("many", [OSError("a"), ValueError(x)])),
    "title of a group": raising(lambda x: ExceptionGroup(x, [OSError("a")])),
    "__str__": raising(WithSecretText),
    "SystemExit": raising(SystemExit),
    "Discard": raising(Discard),
    "Retry": raising(Retry),
    "Snooze": raising(lambda x: Snooze(3600, x)),
    "a result that is refused": lambda x: {x: object()},
    "line of code": line_of_code,
}
EVENTS: dict[str, Callable[[str], tuple[str, Any]]] = {
    "type of an event": lambda x: (x, None),
    "text of an event": lambda x: ("note", x),
    "value in an event": lambda x: ("note", {"said": ["all is well", {"deep": (x,)}]}),
    "key in an event": lambda x: ("note", {x: 1}),
}
CALLS: dict[str, Callable[[RunQueue, str], Run | None]] = {
    "fail, with a text": lambda queue, x: queue.fail(leased(queue), x),
    "fail, with an error": lambda queue, x: queue.fail(leased(queue), ValueError(x), retry=False),
    "reason of a release": lambda queue, x: queue.release(leased(queue), reason=x, delay=3600),
    "reason of a release after a cancel": lambda queue, x: release_cancelled(queue, x),
    "reason of a cancel": lambda queue, x: queue.cancel(new(queue).id, x),
    "reason of a stop request": lambda queue, x: queue.cancel(leased(queue).run_id, x),
    "reason of a settled cancel": lambda queue, x: settle_cancelled(queue, x),
    "reason of a pause": lambda queue, x: queue.pause("night", "kind " + str(uuid4()), reason=x),
    "event outside of a worker": lambda queue, x: emit_outside(queue, x),
}
PLUGINS = ("reason of a retry", "fault of the retry policy", "observer of the database", "observer of handlers")


UNTOLD = {"Snooze", "observer of the database"}
"""Places whose text is not even looked at: a snooze's reason, and the values that a database complains about."""


def new(queue: RunQueue) -> Run:
    """A run that no worker claims, nor anybody else."""
    return queue.enqueue("manual", tenant_id="acme", queue=f"of its own {uuid4()}")


def leased(queue: RunQueue) -> Any:
    return queue.claim("test", queues=[new(queue).queue])[0].lease


def release_cancelled(queue: RunQueue, reason: str) -> Run:
    lease = leased(queue)
    queue.cancel(lease.run_id)
    return queue.release(lease, reason=reason)


def settle_cancelled(queue: RunQueue, reason: str) -> Run:
    lease = leased(queue)
    queue.cancel(lease.run_id, reason)
    return queue.settle_cancelled(lease)


def emit_outside(queue: RunQueue, canary: str) -> Run:
    lease = leased(queue)
    with queue.transaction(lease) as tx:
        tx.emit("note", {"said": canary})
    return queue.release(lease, delay=3600)


class Leaky:
    """Puts what a run's input says into the answers and the faults of plugins."""

    @staticmethod
    def _canary(place: str, input: Any) -> str | None:
        return input["canary"] if isinstance(input, dict) and input.get("place") == place else None

    @hookimpl
    def runqueue_retry_delay(self, failure: Failure) -> RetryDelay | None:
        inputs = getattr(failure.error, "for_plugins", None)
        if reason := self._canary("reason of a retry", inputs):
            return RetryDelay(3600, reason)
        if fault := self._canary("fault of the retry policy", inputs):
            raise ValueError(fault)
        return None

    @hookimpl
    def runqueue_runs_finished(self, connection: Any, runs: list[Run], schema: str) -> None:
        for run in runs:
            if fault := self._canary("observer of the database", HIDDEN.get(run.id)):
                connection.execute(text("select cast(:token as int)"), {"token": fault})

    @hookimpl
    def runqueue_run_ended(self, run: Any, outcome: str, error: BaseException | None) -> None:
        if fault := self._canary("observer of handlers", HIDDEN.get(run.run.id)):
            raise ValueError(fault)


HIDDEN: dict[Any, dict[str, str]] = {}
"""What handlers do, by run: the input of a run is stored as it is, and no place for a secret."""


def dump(engine: Engine, schema: str = "runqueue") -> str:
    """Every row of every table of the schema, and what the sessions do."""
    with engine.connect() as connection:
        tables = connection.execute(
            text(
                "select relname from pg_class where relnamespace = to_regnamespace(:schema) and relkind in ('r', 'p')"
            ),
            {"schema": schema},
        ).scalars()
        statements = [f'select row_to_json(t)::text from {schema}."{table}" t' for table in tables]
        assert len(statements) >= 4
        statements.append("select row_to_json(t)::text from pg_stat_activity t where datname = current_database()")
        return "\n".join(row for x in statements for row in connection.execute(text(x)).scalars())


@pytest.fixture
def canaries() -> Canaries:
    HIDDEN.clear()
    return Canaries()


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.root, "handlers", [*logging.root.handlers])
    return caller(monkeypatch, capsys)


def looked_at(call: Call, url: str, runs: list[Run]) -> list[str]:
    """What the command line shows of the runs, every other time for programs."""
    commands: list[list[Any]] = [["list", "--limit", "1000"], ["list", "--limit", "1000", "--json"], ["stats"]]
    for n, run in enumerate(runs):
        further = "watch" if n % 3 and run.status.terminal else "explain"
        commands += [[x, run.id, *(["--json"] if n % 2 else [])] for x in ("show", further)]
    said = []
    for command in commands:
        result = call("--database-url", url, *command)
        assert result.code == 0, result.err
        said.append(result.out + result.err)
    return said


@pytest.mark.parametrize("redacted", [True, False], ids=["redacted", "as they are"])
def test_no_secret_of_a_failure_event_or_reason_is_kept_or_shown(
    url: str, engine: Engine, settings: Settings, canaries: Canaries, caplog: Any, call: Call, redacted: bool
) -> None:
    """Without the plugin, every one of them is found: so all places are reached, and the search can fail."""
    caplog.set_level(logging.DEBUG, "runqueue")
    some = 3 if redacted else 1
    queue = RunQueue(engine, settings=settings, plugins=[Leaky()], without=[] if redacted else ["redaction"])
    queue.handler("sync")(leak)
    queue.handler("async")(leak_async)
    runs: list[Run] = []
    for n, place in enumerate([*FAULTS, *EVENTS, *PLUGINS]):
        for m, shape in enumerate(shapes(some)):
            again = place in (*PLUGINS, "Retry")
            run = queue.enqueue(("sync", "async")[(n + m) % 2], tenant_id="acme", max_attempts=2 if again else 1)
            HIDDEN[run.id] = {"place": place, "canary": canaries.plant(place, shape)}
            runs.append(run)
    with running(Worker(queue, concurrency=4)):
        eventually(lambda: all(settled(queue, run.id) for run in runs), 30, what="the end of all runs")
    for place, act in CALLS.items():
        for shape in shapes(some):
            made = act(queue, canaries.plant(place, shape))
            runs += [made] if made else []
    options = ["--database-url", url, *([] if redacted else ["--no-plugin", "redaction"])]
    said = []
    for shape in shapes(some):
        for place, command in (
            ("cancel, by command", ["cancel", new(queue).id]),
            ("pause, by command", ["pause", "x"]),
        ):
            result = call(*options, *command, "--reason", canaries.plant(place, shape))
            assert result.code == 0, result.err
            said.append(result.out + result.err)
    places = [*FAULTS, *EVENTS, *PLUGINS, *CALLS, "cancel, by command", "pause, by command"]
    assert canaries.places() == dict.fromkeys(places, some)
    assert {x.partition(", as ")[2] for x in canaries.planted.values()} == set(SHAPES)

    shown = looked_at(call, url, [queue.get(x.id) for x in runs[::13]])
    found = [canaries.found_in(x) for x in (dump(engine), caplog.text, *said, *shown)]
    if redacted:
        assert found == [[]] * len(found)
    else:
        everywhere = {x.partition(", as ")[0] for one in found for x in one}
        assert everywhere == set(places) - UNTOLD


def leak(run: SyncRunContext) -> Any:
    """Do with the run's canary what its place says."""
    told = HIDDEN[run.id]
    if told["place"] in EVENTS:
        run.emit(*EVENTS[told["place"]](told["canary"]))
    return fail(told)


async def leak_async(run: RunContext) -> Any:
    """The same in a coroutine."""
    told = HIDDEN[run.id]
    if told["place"] in EVENTS:
        await run.emit(*EVENTS[told["place"]](told["canary"]))
    return fail(told)


def fail(told: dict[str, str]) -> Any:
    if told["place"] in FAULTS:
        return FAULTS[told["place"]](told["canary"])
    if told["place"] in PLUGINS:
        error = ValueError("for the plugins")
        error.for_plugins = told  # type: ignore[attr-defined]
        raise error
    return None


def settled(queue: RunQueue, run_id: Any) -> bool:
    run = queue.get(run_id)
    return run.status.terminal or (
        run.status == "pending" and run.fencing_token > 0 and run.available_at > run.created_at
    )


@pytest.mark.parametrize("options", [[], ["--verbose"]], ids=["brief", "verbose"])
def test_no_password_of_a_url_is_printed(
    canaries: Canaries, call: Call, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    def password() -> str:
        return canaries.plant("URL", "password").removeprefix("password=")

    said = []
    for address, code in (
        (f"postgresql://app:{password()}@127.0.0.1:{free_port()}/app", 4),
        (f"postgresql://127.0.0.1:{free_port()}/app?password={password()}", 4),
        (f"postgresql://app:{password()}@127.0.0.1:nowhere/app", 2),
        (f"mysql://app:{password()}@127.0.0.1/app", 2),
        (password(), 2),
    ):
        by_option = call(*options, "--database-url", address, "list")
        monkeypatch.setenv("RUNQUEUE_DATABASE_URL", address)
        by_variable = call(*options, "list", "--json")
        monkeypatch.delenv("RUNQUEUE_DATABASE_URL")
        assert (by_option.code, by_variable.code) == (code, code), by_option.err
        said += [x.out + x.err for x in (by_option, by_variable)]
    assert canaries.places() == {"URL": 5}
    assert canaries.found_in(*said) == []


@pytest.mark.parametrize("options", [[], ["--verbose"]], ids=["brief", "verbose"])
def test_no_secret_of_an_application_is_printed(
    url: str, canaries: Canaries, call: Call, tmp_path: Any, options: list[str]
) -> None:
    said = []
    for shape in SHAPES:
        name = f"canary_{uuid4().hex}"
        canary = canaries.plant("an application that cannot be imported", shape)
        (tmp_path / f"{name}.py").write_text(f"raise ValueError({canary!r})\n")
        result = call(*options, "--database-url", url, "worker", f"{name}:queue")
        assert result.code == 1
        assert "ValueError" in result.err
        said.append(result.out + result.err)
    assert canaries.places() == {"an application that cannot be imported": len(SHAPES)}
    assert canaries.found_in(*said) == []


@pytest.mark.parametrize("redacted", [True, False], ids=["redacted", "as they are"])
def test_payloads_are_redacted_where_that_is_configured(
    url: str, engine: Engine, settings: Settings, canaries: Canaries, caplog: Any, call: Call, redacted: bool
) -> None:
    """Without the option they are found: the search can fail."""
    caplog.set_level(logging.DEBUG, "runqueue")
    options = {"redaction": {"payloads": ["input", "budget", "result", "checkpoint"]}} if redacted else {}
    queue = RunQueue(engine, settings=settings, plugin_options=options)
    plant = canaries.plant

    @queue.handler("sync")
    def sync(run: SyncRunContext) -> Any:
        with run.transaction() as tx:
            tx.save_checkpoint({"seen": [plant("checkpoint, sync", run.input["shape"])]})
            tx.enqueue("child", {"of": plant("input of a child", run.input["shape"])}, queue="manual")
        return {"answer": plant("result, sync", run.input["shape"])}

    @queue.handler("async")
    async def async_(run: RunContext) -> Any:
        async with run.transaction() as tx:
            await tx.save_checkpoint({plant("checkpoint, async", run.input["shape"]): 1})
        return [plant("result, async", run.input["shape"])]

    runs = []
    with running(Worker(queue, concurrency=4)):
        for shape in SHAPES:
            for kind in ("sync", "async"):
                input = {"shape": shape, "text": plant(f"input, {kind}", shape)}
                made = queue.enqueue(kind, input, tenant_id="acme", budget={"note": plant("budget", shape)})
                assert made.input["shape"] == shape
                runs.append(made)
            again = {"idempotency_key": shape, "tenant_id": "acme", "queue": "manual"}
            many = NewRun(kind="many", input=[plant("input, keyed", shape)], **again)
            [first] = queue.enqueue_many([many])
            assert queue.enqueue_many([many])[0].id == first.id
            runs.append(first)
        for run in runs:
            if run.kind != "many":
                assert queue.wait(run.id, 15).status == "done"
    for shape in SHAPES:
        queue.complete(leased(queue), {"answer": plant("result, by hand", shape)})
    places = canaries.places()
    assert places.pop("budget") == 2 * len(SHAPES)
    assert list(places.values()) == 9 * [len(SHAPES)]
    found = canaries.found_in(dump(engine))
    shown = canaries.found_in(*looked_at(call, url, [queue.get(x.id) for x in runs[:4]]))
    if redacted:
        assert (found, shown) == ([], [])
    else:
        assert found == sorted(set(canaries.planted.values()))
        assert shown
    assert canaries.found_in(caplog.text) == []
