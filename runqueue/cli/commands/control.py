"""`cancel`, `retry`, `reap`, `pause`, `resume`: steering what runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from uuid import UUID

import click

from runqueue.cli import exits, output
from runqueue.cli.app import App, pass_app
from runqueue.cli.options import command, duration, json_option
from runqueue.errors import RunNotFound
from runqueue.types import Run, RunStatus

ids = click.argument("run_ids", metavar="ID...", type=click.UUID, nargs=-1, required=True)


@command("cancel", example="runqueue cancel 01890a5d-ac96-774b-bcce-b302099a8057 --reason 'wrong order'")
@ids
@click.option("--reason", metavar="TEXT", help="Why; recorded with the run.")
@json_option("each run as a line of JSON")
@pass_app
def cancel(app: App, run_ids: Sequence[UUID], reason: str | None, as_json: bool) -> int:
    """Cancel runs, or ask the workers that have them to stop.

    A run that waits is cancelled at once. One that a worker has is asked to stop, which takes a moment. One that has
    ended stays as it is.
    """
    app.log()
    queue = app.queue

    def word(run: Run) -> str:
        return "stop requested" if run.status is RunStatus.LEASED else run.status

    return _each(run_ids, lambda run_id: queue.cancel(run_id, reason), word, as_json)


@command("retry", example="runqueue retry 01890a5d-ac96-774b-bcce-b302099a8057")
@ids
@click.option("--delay", type=duration, help="Not before so many seconds, or 10m, 2h.")
@json_option("each run as a line of JSON")
@pass_app
def retry(app: App, run_ids: Sequence[UUID], delay: float | None, as_json: bool) -> int:
    """Run dead or cancelled runs again, with all their attempts.

    Fails for a run that is done or that a worker has; it stays as it is.
    """
    app.log()
    queue = app.queue
    refused: list[UUID] = []

    def act(run_id: UUID) -> Run:
        run = queue.retry(run_id, delay=delay)
        if run.status is not RunStatus.PENDING:
            refused.append(run_id)
            output.note(f"run {run_id} is {run.status}: not retried")
        return run

    code = _each(run_ids, act, lambda run: run.status, as_json)
    return code or (exits.FAILED if refused else 0)


@command("reap", example="runqueue reap")
@click.option("--limit", type=int, help="At most so many.  [default: 500]")
@json_option("the counts as a JSON document")
@pass_app
def reap(app: App, limit: int | None, as_json: bool) -> int:
    """Take back the runs whose workers were lost.

    Workers do this by themselves, every few seconds. A run with attempts left waits for a worker again; the others
    end. Under --claim takeover the workers claim lost runs directly, and only those that must end are moved here.
    """
    app.log()
    done = asdict(app.queue.reap(limit))
    if as_json:
        output.document(done)
    else:
        output.facts(done.items())
    return exits.FAILED if done["failed"] else 0


@command("pause", example="runqueue pause default --kind research --reason 'provider is down'")
@click.argument("queue")
@click.option("--kind", metavar="NAME", help="Only runs of this kind.")
@click.option("--reason", metavar="TEXT", help="Why; recorded.")
@pass_app
def pause(app: App, queue: str, kind: str | None, reason: str | None) -> None:
    """Let no worker take new runs from QUEUE. What runs already goes on."""
    app.log()
    app.queue.pause(queue, kind, reason=reason)
    why = f" ({app.redacted(reason)})" if reason else ""
    output.line(f"{_lane(queue, kind)}: paused{why}; what runs already goes on")


@command("resume", example="runqueue resume default --kind research")
@click.argument("queue")
@click.option("--kind", metavar="NAME", help="Undo the pause of this kind.")
@pass_app
def resume(app: App, queue: str, kind: str | None) -> None:
    """Let workers take runs from QUEUE again."""
    app.log()
    app.queue.resume(queue, kind)
    output.line(f"{_lane(queue, kind)}: not paused any more")


def _lane(queue: str, kind: str | None) -> str:
    return f"queue {queue!r}" if kind is None else f"kind {kind!r} in queue {queue!r}"


def _each(run_ids: Sequence[UUID], act: Callable[[UUID], Run], word: Callable[[Run], str], as_json: bool) -> int:
    """Do it to every run, and say what came of it; those that do not exist are told at once and fail the whole."""
    code = 0
    for run_id in run_ids:
        try:
            run = act(run_id)
        except RunNotFound as error:
            output.note(f"runqueue: {error}")
            code = exits.NOT_FOUND
            continue
        if as_json:
            output.json_line(output.run_as_json(run))
        else:
            output.line(run.id, word(run))
    return code
