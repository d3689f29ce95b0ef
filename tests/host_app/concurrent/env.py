"""The env.py of an async application."""

from __future__ import annotations

import asyncio

from alembic import context
from host_app.options import configuration, database
from sqlalchemy import Connection, NullPool
from sqlalchemy.ext.asyncio import create_async_engine

x = context.get_x_argument(as_dictionary=True)


def run(connection: Connection) -> None:
    """As in a sync application."""
    context.configure(connection=connection, **configuration(x))
    with context.begin_transaction():
        context.run_migrations()


async def main() -> None:
    """Lend alembic the sync side of an async connection."""
    engine = create_async_engine(database(x), poolclass=NullPool)
    async with engine.connect() as connection:
        await connection.run_sync(run)
        await connection.commit()
    await engine.dispose()


asyncio.run(main())
