"""The env.py of a sync application."""

from __future__ import annotations

from alembic import context
from host_app.options import configuration, database
from sqlalchemy import NullPool, create_engine

x = context.get_x_argument(as_dictionary=True)

if context.is_offline_mode():
    context.configure(dialect_name="postgresql", literal_binds=True, **configuration(x))
    with context.begin_transaction():
        context.run_migrations()
else:
    with create_engine(database(x), poolclass=NullPool).connect() as connection:
        context.configure(connection=connection, **configuration(x))
        with context.begin_transaction():
            context.run_migrations()
