"""`migrate`: making and upgrading the tables."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from runqueue.cli.app import App, pass_app
from runqueue.cli.options import command
from runqueue.cli.output import visible
from runqueue.errors import PluginError, SchemaOutdated

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from runqueue.operations.context import Context
    from runqueue.schema.plan import Step


@command("migrate", example="runqueue migrate --database-url postgresql://localhost/app")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it. Needs no database.")
@click.option("--since", metavar="REVISION", help="With --sql: only what comes after this revision.")
@click.option("--plan", is_flag=True, help="Change nothing; say what would run, and which locks it takes.")
@click.option("--json", "as_json", is_flag=True, help="With --plan: one line of JSON for each revision and index.")
@click.option("--check", is_flag=True, help="Change nothing; exit with 5 when there is something to migrate.")
@click.option("--before", is_flag=True, help="Only what goes before the new code, while the old code still runs.")
@click.option("--wait", type=click.FloatRange(0, 86400), default=60.0, show_default=True,
              help="For how many seconds to try, while others hold locks.")  # fmt: skip
@click.option("--lock-timeout", type=click.FloatRange(0.01, 60), default=0.5, show_default=True,
              help="Seconds that a statement may wait for a table at a time; all wait behind it.")  # fmt: skip
@pass_app
def migrate(
    app: App, as_sql: bool, since: str | None, plan: bool, as_json: bool, check: bool, before: bool, wait: float,
    lock_timeout: float,
) -> None:  # fmt: skip
    """Create the tables, or bring them to this release's version.

    Run it once before the first worker, and after each upgrade. Running it again, or from many processes at once,
    does no harm. With --claim and --plugin it also makes what that policy and those plugins need: indexes, and tables.
    """
    app.log()
    if since is not None and not as_sql:
        raise click.UsageError("--since goes with --sql")
    if as_json and not plan:
        raise click.UsageError("--json goes with --plan")
    if as_sql + plan + check + before > 1:
        raise click.UsageError("--sql, --plan, --check and --before exclude each other")
    if as_sql:
        click.echo(_sql(app, since))
        return
    queue, core, name = app.queue, app.core, app.config.schema
    from runqueue.schema import migrate

    try:
        if plan:
            with queue.engine.connect() as connection:
                steps = migrate.plan(connection, schema=name, indexes=core.indexes(), migrations=core.migrations())
            _show(steps, name, as_json)
            return
        if check:
            with queue.engine.connect() as connection:
                core.call(connection, _check)
            click.echo(f"schema {name!r} is up to date")
            return
        was = migrate.current(queue.engine, schema=name)
        version = migrate.upgrade(
            queue.engine, schema=name, indexes=core.indexes(), migrations=core.migrations(), before=before, wait=wait,
            lock_timeout=lock_timeout,
        )  # fmt: skip
    except PluginError as error:
        raise app.wrong_plugin(error) from error
    state = "new" if was is None else "as it was" if was == version else f"it was at {was}"
    click.echo(f"schema {name!r} is at version {version} ({state})")


def _show(steps: list[Step], schema: str, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        for step in steps:
            click.echo(json.dumps(step.as_json()))
        return
    if not steps:
        click.echo(f"schema {schema!r} is up to date")
    for step in steps:
        click.echo(f"{step.name}: {step.applies} the new code. {step.title}")
        for statement in step.statements:
            click.echo(f"  {visible(' '.join(statement.sql.split()))[:100]}")
            for lock in statement.locks:
                click.echo(f"    {lock.mode} on {lock.table}: stops {lock.stops}")


def _check(connection: Connection, ctx: Context) -> None:
    """Raise SchemaOutdated where there is something to migrate."""
    from runqueue.schema import migrate
    from runqueue.schema.version import require_version

    require_version(connection, ctx.t.schema)
    core = click.get_current_context().ensure_object(App).core
    missing = migrate.missing(connection, schema=ctx.t.schema, indexes=core.indexes(), migrations=core.migrations())
    if missing:
        raise SchemaOutdated(f"the schema {ctx.t.schema!r} lacks {', '.join(missing)}: run this without --check")


def _sql(app: App, since: str | None) -> str:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateIndex

    from runqueue.schema import migrate

    core = app.core
    try:
        parts = [migrate.sql(schema=core.ctx.t.schema, migrations=core.migrations(), since=since).rstrip()]
    except PluginError as error:
        raise app.wrong_plugin(error) from error
    for index in core.indexes():
        index.dialect_options["postgresql"]["concurrently"] = True
        parts.append(f"{CreateIndex(index).compile(dialect=postgresql.dialect())};")  # type: ignore[no-untyped-call]
    return "\n\n".join(parts)
