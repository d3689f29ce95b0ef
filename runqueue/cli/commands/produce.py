"""`enqueue`: a run from the command line."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

import click

from runqueue.cli import output
from runqueue.cli.app import App, pass_app
from runqueue.cli.options import command, duration, json_option
from runqueue.errors import IdempotencyConflict


def json_value(text: str) -> Any:
    """What a JSON text stands for; `-` is the text on stdin. Raises click.BadParameter."""
    try:
        return json.loads(sys.stdin.buffer.read() if text == "-" else text)
    except RecursionError:
        raise click.BadParameter("no JSON: nested too deep") from None
    except ValueError as error:
        raise click.BadParameter(f"no JSON: {error}") from None


def moment(text: str) -> datetime:
    """A time in ISO 8601 with its zone. Raises click.BadParameter."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise click.BadParameter(f"{text!r} is no time with a zone, such as 2030-01-31T09:00Z.")
    return when


@command("enqueue", example="""runqueue enqueue research '{"order": 7}' --tenant acme""")
@click.argument("kind")
@click.argument("input", metavar="[JSON|-]", type=json_value, required=False)
@click.option("--tenant", "tenant_id", required=True, metavar="NAME", help="For whom the run is.")
@click.option("-q", "--queue", default="default", show_default=True, metavar="NAME", help="Which workers take it.")
@click.option("--priority", type=int, default=0, show_default=True, help="Higher goes first.")
@click.option("--delay", type=duration, help="Not before so many seconds, or 10m, 2h.")
@click.option(
    "--at", "available_at", type=moment, metavar="TIME", help="Not before this time, such as 2030-01-31T09:00Z."
)
@click.option("--max-attempts", type=int, help="How often it may be tried.  [default: 3]")
@click.option("--budget", type=json_value, metavar="JSON", help="What the run may spend, for its handler to read.")
@click.option("--key", "idempotency_key", metavar="TEXT", help="The same key gives the same run, not a second one.")
@json_option("the run as JSON instead of its id")
@pass_app
def enqueue(app: App, /, as_json: bool, **arguments: Any) -> None:
    """Add a run of the kind KIND, and print its id.

    The input is a JSON value; - reads it from stdin, and without one the input is null.
    """
    app.log()
    try:
        run = app.queue.enqueue(**arguments)
    except IdempotencyConflict as error:
        raise click.ClickException(f"--key: {error.rule}") from None
    if as_json:
        output.json_line(output.run_as_json(run))
    else:
        click.echo(run.id)
