"""A process that was frozen past its lease wakes up as a zombie: it writes nothing, and works on."""

from __future__ import annotations

import pytest
from support.effects import Effects
from support.fleet import LEASE, Fleet, both_policies
from support.proxy import Proxy
from support.tools import eventually

from runqueue import RunQueue


def _freeze_until_taken(fleet: Fleet, plain: RunQueue, fx: Effects, url: str | None, cut: Proxy | None) -> None:
    frozen = fleet.start(url=url).ready()
    run = plain.enqueue("gate", "go", tenant_id="acme")
    fx.await_start(run.id)
    frozen.freeze()
    other = fleet.start().ready()
    if cut is not None:
        cut.cut()
    fx.await_start(run.id, 2, timeout=10 * LEASE)
    fx.open("go 1")  # what the frozen attempt waits for; the second one is still at work
    frozen.thaw()
    eventually(lambda: "lost the lease" in frozen.log, 10, what="the zombie's notice")
    held = plain.get(run.id)
    assert (held.status, held.attempts, held.fencing_token) == ("leased", 2, 2)

    fx.open("go 2")
    done = plain.wait(run.id, 10)
    assert (done.status, done.attempts, done.result) == ("done", 2, other.name)
    assert fx.all(run.id, "passed") == [(2, other.name)]
    assert [event.data for event in plain.events(run.id) if event.type == "passed"] == [other.name]
    assert frozen.log.count("lost the lease") == 1

    other.kill()
    again = plain.enqueue("quick", tenant_id="acme")
    assert plain.wait(again.id, 5).result == frozen.name


@both_policies
def test_frozen_process_wakes_up_and_writes_nothing(any_fleet: Fleet, plain: RunQueue, fx: Effects) -> None:
    _freeze_until_taken(any_fleet, plain, fx, None, None)


@pytest.mark.slow
@both_policies
def test_frozen_process_whose_connections_were_cut_works_on(
    any_fleet: Fleet, plain: RunQueue, fx: Effects, proxy: Proxy
) -> None:
    _freeze_until_taken(any_fleet, plain, fx, proxy.url, proxy)
