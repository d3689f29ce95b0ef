"""`migrate`: making and upgrading the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from runqueue.cli.app import App, pass_app
from runqueue.cli.options import command
from runqueue.errors import PluginError, SchemaOutdated

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from runqueue.operations.context import Context


@command("migrate", example="runqueue migrate --database-url postgresql://localhost/app")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it. Needs no database.")
@click.option("--check", is_flag=True, help="Change nothing; exit with 5 when there is something to migrate.")
@pass_app
def migrate(app: App, as_sql: bool, check: bool) -> None:
    """Create the tables, or bring them to this release's version.

    Run it once before the first worker, and after each upgrade. Running it again, or from many processes at once,
    does no harm. With --claim and --plugin it also makes what that policy and those plugins need: indexes, and tables.
    """
    app.log()
    if as_sql:
        click.echo(_sql(app))
        return
    queue, core, name = app.queue, app.core, app.config.schema
    if check:
        with queue.engine.connect() as connection:
            core.call(connection, _check)
        click.echo(f"schema {name!r} is up to date")
        return
    from runqueue.schema import migrate

    before = migrate.current(queue.engine, schema=name)
    try:
        version = migrate.upgrade(queue.engine, schema=name, indexes=core.indexes(), migrations=core.migrations())
    except PluginError as error:
        raise app.wrong_plugin(error) from error
    was = "new" if before is None else "as it was" if before == version else f"it was at {before}"
    click.echo(f"schema {name!r} is at version {version} ({was})")


def _check(connection: Connection, ctx: Context) -> None:
    """Raise SchemaOutdated where there is something to migrate."""
    from runqueue.schema import migrate
    from runqueue.schema.version import require_version

    require_version(connection, ctx.t.schema)
    core = click.get_current_context().ensure_object(App).core
    missing = migrate.missing(connection, schema=ctx.t.schema, indexes=core.indexes(), migrations=core.migrations())
    if missing:
        raise SchemaOutdated(f"the schema {ctx.t.schema!r} lacks {', '.join(missing)}: run this without --check")


def _sql(app: App) -> str:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateIndex

    from runqueue.schema import migrate

    core = app.core
    try:
        parts = [migrate.sql(schema=core.ctx.t.schema, migrations=core.migrations()).rstrip()]
    except PluginError as error:
        raise app.wrong_plugin(error) from error
    for index in core.indexes():
        index.dialect_options["postgresql"]["concurrently"] = True
        parts.append(f"{CreateIndex(index).compile(dialect=postgresql.dialect())};")  # type: ignore[no-untyped-call]
    return "\n\n".join(parts)
