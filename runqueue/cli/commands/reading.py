"""`list`, `show`, `watch`, `explain`, `stats`: looking at runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import UUID

import click

from runqueue.cli import output
from runqueue.cli.app import App, pass_app
from runqueue.cli.options import command, duration, json_option
from runqueue.types import RunStatus

if TYPE_CHECKING:
    from runqueue.queue import RunQueue
    from runqueue.types import Event

STATS = ("queue", "kind", "pending", "due", "leased", "done", "dead", "cancelled", "oldest_due")


@command("list", example="runqueue list --status dead --tenant acme")
@click.option("--tenant", "tenant_id", metavar="NAME", help="Only runs of this tenant.")
@click.option("-q", "--queue", metavar="NAME", help="Only runs in this queue.")
@click.option("--kind", metavar="NAME", help="Only runs of this kind.")
@click.option("--status", type=click.Choice([x.value for x in RunStatus]), help="Only runs in this state.")
@click.option("--limit", type=int, default=50, show_default=True, help="At most so many.")
@click.option("--cursor", type=click.UUID, metavar="ID", help="Go on after this run, the last one of the page before.")
@json_option("each run as a line of JSON")
@pass_app
def list_runs(app: App, /, as_json: bool, **filters: Any) -> None:
    """List runs, the newest first.

    A terminal narrower than 120 characters gets fewer columns. Without a terminal it prints a line a run, with tabs:
    id, status, tenant, queue, kind, attempts, created, error.
    """
    app.log()
    page = app.queue.list(**filters)
    if as_json:
        for run in page.runs:
            output.json_line(output.run_as_json(run))
    else:
        output.table(
            ("id", "status", "tenant", "queue", "kind", "attempts", "created", "error"),
            (
                (
                    x.id,
                    x.status,
                    x.tenant_id,
                    x.queue,
                    x.kind,
                    f"{x.attempts}/{x.max_attempts}",
                    x.created_at,
                    x.error_code,
                )
                for x in page.runs
            ),
            cut=("tenant", "queue", "kind", "error"),
            wide=("queue", "created"),
        )
    if page.cursor is not None:
        output.note(f"there are more: --cursor {page.cursor}")


@command("show", example="runqueue show 01890a5d-ac96-774b-bcce-b302099a8057")
@click.argument("run_id", metavar="ID", type=click.UUID)
@click.option("--events", "tail", type=click.IntRange(0, 10_000), default=10, show_default=True, help="Last events.")
@json_option("the run with its events as one JSON document")
@pass_app
def show(app: App, run_id: UUID, tail: int, as_json: bool) -> None:
    """Show all of a run, and its last events."""
    app.log()
    queue = app.queue
    run = queue.get(run_id)
    events = _last_events(queue, run_id, tail)
    found = output.run_as_json(run, holder=True)
    if as_json:
        output.document({**found, "events": [output.event_as_json(x) for x in events]})
        return
    output.facts(found.items())
    for event in events:
        output.line(f"event {event.seq}", event.created_at, event.type, _data(event))


@command("watch", example="runqueue watch 01890a5d-ac96-774b-bcce-b302099a8057")
@click.argument("run_id", metavar="ID", type=click.UUID)
@click.option("--after", type=click.IntRange(0), default=0, show_default=True, help="Skip the events up to this one.")
@click.option("--timeout", type=duration, help="Fail when nothing new came for so long.")
@json_option("each event as a line of JSON")
@pass_app
def watch(app: App, run_id: UUID, after: int, timeout: float | None, as_json: bool) -> None:
    """Print the events of a run as they come, until it has ended.

    Each has a number; --after N goes on where an earlier watch stopped, and misses none.
    """
    app.log()
    queue = app.queue
    for event in queue.follow(run_id, after, timeout=timeout):
        if as_json:
            output.json_line(output.event_as_json(event))
        else:
            output.line(event.seq, event.created_at, event.type, _data(event))
    run = queue.get(run_id)
    output.note(f"run {run.id} is {run.status}{f': {run.error_code}' if run.error_code else ''}")


@command("explain", example="runqueue explain 01890a5d-ac96-774b-bcce-b302099a8057")
@click.argument("run_id", metavar="ID", type=click.UUID)
@json_option("a JSON document")
@pass_app
def explain(app: App, run_id: UUID, as_json: bool) -> None:
    """Say why a run is where it is, or why it does not start."""
    app.log()
    queue = app.queue
    found = queue.explain(run_id)
    if as_json:
        output.document(asdict(found))
    else:
        output.line(found.status, found.rule, found.detail)
    if found.rule == "waiting" and queue.core.ctx.tenants is None and (policy := queue.rules().get("tenant_policy")):
        output.note(f"caps were not looked at: name the plugin that decides on tenants here too: --plugin {policy}")


@command("stats", example="runqueue stats")
@json_option("a JSON document")
@pass_app
def stats(app: App, as_json: bool) -> None:
    """Count the runs by queue and kind.

    The columns: queue, kind, pending, due, leased, done, dead, cancelled, oldest_due. `due` are the pending runs that
    could start now, and `oldest_due` says for how many seconds the first of them has waited.
    """
    app.log()
    rows = [asdict(x) for x in app.queue.stats()]
    if as_json:
        output.document({"queues": rows})
    else:
        output.table(STATS, ([row[x] for x in STATS] for row in rows), cut=("queue", "kind"))


def _last_events(queue: RunQueue, run_id: UUID, count: int) -> Sequence[Event]:
    from runqueue.operations import inspect

    if not count:
        return []
    with queue.engine.connect() as connection:
        seen = queue.core.call_in_transaction(connection, inspect.watch, [run_id])
    last = seen[run_id][1] if run_id in seen else 0
    return queue.events(run_id, max(0, last - count), limit=count)


def _data(event: Event) -> str:
    return "" if event.data is None else output.to_json(event.data)
