"""Creating and upgrading the schema. The only module that imports alembic."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from alembic import command, context
from alembic.config import Config
from sqlalchemy import Connection, Engine, Index, create_engine, func, select
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateIndex, CreateSchema, DropIndex

from runqueue.errors import RunqueueError
from runqueue.schema.indexes import index_state
from runqueue.schema.tables import SCHEMA_VERSION, schema_name
from runqueue.schema.version import recorded_version

_ALEMBIC_IS_GLOBAL = threading.Lock()
"""alembic's `context` and `op` are proxies of the whole process; two upgrades in threads would mix."""

_VERSION_TABLE = "runqueue_version"
"""Where the revisions are recorded, unless the application has them in its own alembic."""


def upgrade(
    engine: Engine | str, *, schema: str = "runqueue", indexes: tuple[Index, ...] = (), wait: float = 60
) -> int:
    """Bring the schema to this release's version and return that version.

    Safe when many processes call it at once: one works, the others wait at most `wait` seconds and find it done.
    `indexes` are those that a claim policy brings; they are made concurrently, and rebuilt where a crash left an
    invalid one. Opens its own connection; not to be called inside a migration of the application.
    """
    schema = schema_name(schema)
    _refuse_inside_a_migration()
    own = create_engine(engine) if isinstance(engine, str) else engine
    try:
        with own.connect().execution_options(isolation_level="READ COMMITTED") as connection, connection.begin():
            _lock(connection, schema, wait)
            if not _is_in_a_hosts_lineage(connection, schema):
                connection.execute(CreateSchema(schema, if_not_exists=True))
                with _ALEMBIC_IS_GLOBAL:
                    command.upgrade(_config(schema, connection), "head")
        if indexes:
            _make_indexes(own, schema, indexes, wait)
        with own.connect() as connection:
            return recorded_version(connection, schema) or 0
    finally:
        if own is not engine:
            own.dispose()


def downgrade(engine: Engine, revision: str = "base", *, schema: str = "runqueue") -> None:
    """Undo revisions, down to `revision`. Data goes with the tables."""
    schema = schema_name(schema)
    with engine.connect() as connection, connection.begin():
        _lock(connection, schema, 60)
        with _ALEMBIC_IS_GLOBAL:
            command.downgrade(_config(schema, connection), revision)


def current(engine: Engine, *, schema: str = "runqueue") -> int | None:
    """The version that the database has, None where there is no schema."""
    schema = schema_name(schema)
    with engine.connect() as connection:
        return recorded_version(connection, schema)


def sql(*, schema: str = "runqueue") -> str:
    """The DDL of all revisions, for people who run it themselves."""
    schema = schema_name(schema)
    out = io.StringIO()
    config = _config(schema, None)
    config.output_buffer = out
    with _ALEMBIC_IS_GLOBAL:
        command.upgrade(config, "head", sql=True)
    return f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n\n{out.getvalue()}'


def include_name(
    name: str | None, type_: Literal["schema", "table"] | str, parent_names: Any, *, schema: str = "runqueue"
) -> bool:
    """For a host's `context.configure(include_name=…)` with `include_schemas=True`: leaves our schema alone."""
    del parent_names
    return not (type_ == "schema" and name == schema)


def _config(schema: str, connection: Connection | None) -> Config:
    config = Config()
    config.set_main_option("script_location", "runqueue_migrations:")
    config.set_main_option("path_separator", "newline")
    config.attributes["schema"] = schema
    config.attributes["connection"] = connection
    return config


def _refuse_inside_a_migration() -> None:
    # alembic's proxies are installed only while an environment runs; a nested one would remove them on its way out
    if getattr(context, "_proxy", None) is not None and not _ALEMBIC_IS_GLOBAL.locked():
        raise RunqueueError(
            "upgrade() was called inside a running alembic migration: add 'runqueue_migrations:versions' to the "
            "application's version_locations instead"
        )


def _is_in_a_hosts_lineage(connection: Connection, schema: str) -> bool:
    version = recorded_version(connection, schema)
    if version is None or connection.execute(select(func.to_regclass(f'"{schema}".{_VERSION_TABLE}'))).scalar():
        return False
    if version < SCHEMA_VERSION:
        raise RunqueueError(
            f"the tables in {schema!r} were made by the application's own migrations: run those to upgrade them"
        )
    return True


def _lock(connection: Connection, schema: str, wait: float) -> None:
    # taken before the version is read, and held to the commit; its timeout is that of the DDL too
    connection.execute(select(func.set_config("lock_timeout", f"{max(1, int(wait * 1000))}ms", True)))
    try:
        connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(f"runqueue.migrate.{schema}", 0))))
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":
            raise
        raise RunqueueError(f"another process has been migrating {schema!r} for {wait:g} s") from error


@contextmanager
def _session_lock(connection: Connection, schema: str, wait: float) -> Iterator[None]:
    # CREATE INDEX CONCURRENTLY cannot run in a transaction, so neither can its lock; and a session that waits for a
    # lock counts as an old snapshot, which the index build would wait for: hence trying, not waiting.
    key = func.hashtextextended(f"runqueue.indexes.{schema}", 0)
    pause = threading.Event()
    for _ in range(max(1, int(wait / 0.1))):
        if connection.execute(select(func.pg_try_advisory_lock(key))).scalar_one():
            break
        pause.wait(0.1)
    else:
        raise RunqueueError(f"another process has been building the indexes of {schema!r} for {wait:g} s")
    try:
        yield
    finally:
        connection.execute(select(func.pg_advisory_unlock(key)))


def _make_indexes(engine: Engine, schema: str, indexes: tuple[Index, ...], wait: float) -> None:
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        _session_lock(connection, schema, wait),
    ):
        for index in indexes:
            state = index_state(connection, schema, str(index.name))
            if state is False:
                connection.execute(DropIndex(index))
            if not state:
                index.dialect_options["postgresql"]["concurrently"] = True
                connection.execute(CreateIndex(index))
