"""`migrate`: making and upgrading the tables."""

from __future__ import annotations

import click

from runqueue.cli.app import App, pass_app
from runqueue.cli.options import command


@command("migrate", example="runqueue migrate --database-url postgresql://localhost/app")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SQL instead of running it. Needs no database.")
@click.option("--check", is_flag=True, help="Change nothing; exit with 5 when there is something to migrate.")
@pass_app
def migrate(app: App, as_sql: bool, check: bool) -> None:
    """Create the tables, or bring them to this release's version.

    Run it once before the first worker, and after each upgrade. Running it again, or from many processes at once,
    does no harm. With --claim it also makes the indexes which that policy needs.
    """
    app.log()
    if as_sql:
        click.echo(_sql(app))
        return
    queue = app.queue
    name = queue.core.ctx.t.schema
    if check:
        queue.check()
        click.echo(f"schema {name!r} is up to date")
        return
    from runqueue.schema import migrate

    before = migrate.current(queue.engine, schema=name)
    version = migrate.upgrade(queue.engine, schema=name, indexes=tuple(app.policy.indexes(queue.core.ctx.t)))
    was = "new" if before is None else "as it was" if before == version else f"it was at {before}"
    click.echo(f"schema {name!r} is at version {version} ({was})")


def _sql(app: App) -> str:
    from sqlalchemy.dialects import postgresql
    from sqlalchemy.schema import CreateIndex

    from runqueue.errors import InvalidRun
    from runqueue.schema import migrate
    from runqueue.schema.tables import tables

    schema = app.config.schema
    try:
        parts = [migrate.sql(schema=schema).rstrip()]
    except InvalidRun as error:
        raise app.config.wrong("schema", error.rule) from None
    for index in app.policy.indexes(tables(schema)):
        index.dialect_options["postgresql"]["concurrently"] = True
        parts.append(f"{CreateIndex(index).compile(dialect=postgresql.dialect())};")  # type: ignore[no-untyped-call]
    return "\n\n".join(parts)
