"""Workers whose clocks are wrong by minutes, or by decades, hold and take leases as all others do."""

from __future__ import annotations

import itertools
import os
import signal
from pathlib import Path
from uuid import UUID

import pytest
from sqlalchemy import text
from support.effects import Effects
from support.fleet import LEASE, Fleet, Process, both_policies
from support.tools import eventually

from runqueue import RunQueue

PLACES = [
    os.environ.get("RUNQUEUE_TEST_FAKETIME", ""),
    *(f"/usr/lib/{machine}-linux-gnu/faketime/libfaketimeMT.so.1" for machine in ("x86_64", "aarch64")),
    "/usr/lib/faketime/libfaketimeMT.so.1",
    "/usr/local/lib/faketime/libfaketimeMT.so.1",
]
LIBRARY = next((place for place in PLACES if place and Path(place).is_file()), None)

needs_library = pytest.mark.skipif(LIBRARY is None, reason="libfaketime is not installed")


def _clock(shift: str) -> dict[str, str]:
    return {"LD_PRELOAD": str(LIBRARY), "FAKETIME": shift, "DONT_FAKE_MONOTONIC": "1", "FAKETIME_DONT_RESET": "1"}


def _settable_clock(shift: Path) -> dict[str, str]:
    """A clock that is as wrong as the file says, at any time."""
    file = {"FAKETIME_TIMESTAMP_FILE": str(shift), "FAKETIME_NO_CACHE": "1"}
    return {name: x for name, x in _clock("").items() if name != "FAKETIME"} | file


@pytest.mark.slow
@both_policies
@needs_library
@pytest.mark.parametrize("shifts", [("+10m", "-10m"), ("-10m", "+10m"), ("-50y", "+0")], ids=str)
def test_wrong_clocks_neither_steal_nor_lose_leases(
    shifts: tuple[str, str], any_fleet: Fleet, plain: RunQueue, fx: Effects
) -> None:
    first, second = (any_fleet.start(env=_clock(shift)).ready() for shift in shifts)
    runs = [plain.enqueue("clock", 2 * LEASE, tenant_id="acme") for _ in range(6)]
    later = plain.enqueue("quick", tenant_id="acme", delay=2)
    believed: dict[str, float] = {}
    for run in runs:
        done = plain.wait(run.id, 20)
        assert (done.status, done.attempts, fx.attempts(run.id)) == ("done", 1, [1])
        believed[fx.all(run.id)[0][1]] = done.result
    assert set(believed) == {first.name, second.name}
    assert abs(believed[first.name] - believed[second.name]) > 1000, "the clocks were not wrong"
    done = plain.wait(later.id, 10)
    assert done.finished_at is not None
    assert done.finished_at >= later.available_at
    _end(first)
    _end(second)


@pytest.mark.slow
@needs_library
def test_clock_that_jumps_in_mid_run_costs_no_lease(fleet: Fleet, plain: RunQueue, fx: Effects, tmp_path: Path) -> None:
    """Forwards, again and again between two heartbeats, and then far back, as when a clock is set."""
    shift = tmp_path / "shift"
    _set(shift, "+0")
    jumping = fleet.start(env=_settable_clock(shift)).ready()
    runs = [plain.enqueue("clock", 3 * LEASE, tenant_id="acme") for _ in range(2)]
    for run in runs:
        fx.await_start(run.id)
    fleet.start().ready()
    minutes, enough = itertools.count(10, 10), _renewals(plain, runs[0].id) + 6

    def is_renewed() -> bool:
        _set(shift, f"+{next(minutes)}m")
        return _renewals(plain, runs[0].id) >= enough

    eventually(is_renewed, what="heartbeats between the jumps")
    _set(shift, "-10m")
    for run in runs:
        done = plain.wait(run.id, 20)
        assert (done.status, done.attempts, fx.all(run.id)) == ("done", 1, [(1, jumping.name)])
        assert done.finished_at is not None
        assert done.finished_at.timestamp() - done.result > 500, "the clock did not jump"
    _end(jumping)


def _end(process: Process) -> None:
    """In peace: a process that is killed leaves shared memory of the library's behind."""
    process.send(signal.SIGTERM)
    assert process.exit_code() == 0


def _set(shift: Path, to: str) -> None:
    """At once: the file is read at any time."""
    new = shift.with_suffix(".new")
    new.write_text(to)
    new.replace(shift)


def _renewals(plain: RunQueue, run_id: UUID) -> int:
    query = text("select count(*) from runqueue_audit.audit where run_id = :id and old_status = 'leased'")
    with plain.engine.connect() as connection:
        return int(connection.execute(query, {"id": run_id}).scalar_one())
