"""Run by alembic. The connection and the schema come from `runqueue.schema.migrate`, or from the command line's URL."""

from alembic import context
from sqlalchemy import Connection, create_engine, pool

config = context.config
schema = config.attributes.get("schema", "runqueue")


def run(connection: Connection | None = None) -> None:
    """Run the revisions on a connection, or write their SQL where there is none."""
    context.configure(
        connection=connection,
        dialect_name=None if connection else "postgresql",
        literal_binds=connection is None,
        version_table=config.attributes.get("version_table", "runqueue_version"),
        version_table_schema=schema,
        include_schemas=True,
        runqueue_schema=schema,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    run()
elif (given := config.attributes.get("connection")) is not None:
    run(given)
else:
    with create_engine(config.get_main_option("sqlalchemy.url", ""), poolclass=pool.NullPool).connect() as own:
        run(own)
