"""Workers whose clocks are wrong by minutes, or by decades, hold and take leases as all others do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.effects import Effects
from support.fleet import LEASE, Fleet, both_policies

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
