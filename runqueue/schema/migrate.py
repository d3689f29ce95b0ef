"""Creating and upgrading the schema. The only module that imports alembic."""

from __future__ import annotations

import io
import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from alembic import command, context, util
from alembic.config import Config
from alembic.script import Script, ScriptDirectory
from sqlalchemy import Connection, Engine, Index, create_engine, func, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import OperationalError
from sqlalchemy.schema import CreateIndex, CreateSchema, DropIndex, DropTable

from runqueue.errors import PluginError, RunqueueError
from runqueue.schema import branches as plugins
from runqueue.schema.branches import VERSION_TABLE, Branch
from runqueue.schema.indexes import index_state
from runqueue.schema.tables import SCHEMA_VERSION, schema_name
from runqueue.schema.version import recorded_version

_ALEMBIC_IS_GLOBAL = threading.Lock()
"""alembic's `context` and `op` are proxies of the whole process; two upgrades in threads would mix."""

_LABEL = re.compile(r"[a-z][a-z0-9_]{0,39}")

_DIALECT, _LITERAL = postgresql.dialect(), {"literal_binds": True}  # type: ignore[no-untyped-call]

log = logging.getLogger("runqueue")


def upgrade(
    engine: Engine | str,
    *,
    schema: str = "runqueue",
    indexes: tuple[Index, ...] = (),
    migrations: Sequence[str] = (),
    wait: float = 60,
) -> int:
    """Bring the schema to this release's version and return that version.

    Safe when many processes call it at once: one works, the others wait at most `wait` seconds and find it done.
    `indexes` are those that a claim policy and plugins bring; they are made concurrently, and rebuilt where a crash
    left an invalid one. `migrations` are the version locations of plugins; they run after the library's, in the same
    transaction. A plugin that is not named is left as it is. Opens its own connection; not to be called inside a
    migration of the application. Raises RunqueueError, and PluginError for migrations that cannot be used.
    """
    schema = schema_name(schema)
    branches = _branches(migrations)
    _refuse_inside_a_migration()
    own = create_engine(engine) if isinstance(engine, str) else engine
    try:
        with own.connect().execution_options(isolation_level="READ COMMITTED") as connection, connection.begin():
            _lock(connection, schema, wait)
            if not _is_in_a_hosts_lineage(connection, schema):
                connection.execute(CreateSchema(schema, if_not_exists=True))
                with _ALEMBIC_IS_GLOBAL:
                    command.upgrade(_config(schema, connection), "head")
                    for branch in branches:
                        with _under(connection, schema, branch):
                            command.upgrade(_config(schema, connection, branch), f"{branch.label}@head")
            elif branches:
                log.warning(
                    "the application's own migrations made %r: %s must be in its version_locations too",
                    schema,
                    ", ".join(migrations),
                )
        if indexes:
            _make_indexes(own, schema, indexes, wait)
        with own.connect() as connection:
            return recorded_version(connection, schema) or 0
    finally:
        if own is not engine:
            own.dispose()


def downgrade(
    engine: Engine, revision: str = "base", *, schema: str = "runqueue", migrations: Sequence[str] = ()
) -> None:
    """Undo all of the plugins' `migrations`, then revisions down to `revision`. Data goes with the tables.

    Raises RunqueueError where nothing would be left under the migrations of a plugin that is not named.
    """
    schema = schema_name(schema)
    branches = _branches(migrations)
    with engine.connect() as connection, connection.begin():
        _lock(connection, schema, 60)
        with _ALEMBIC_IS_GLOBAL:
            for branch in reversed(branches):
                with _under(connection, schema, branch):
                    command.downgrade(_config(schema, connection, branch), f"{branch.label}@base")
                connection.execute(DropTable(branch.table(schema)))
            if revision == "base" and (left := plugins.others(connection, schema)):
                raise RunqueueError(f"{schema!r} has tables of plugins: name their migrations too: {', '.join(left)}")
            command.downgrade(_config(schema, connection), revision)


def current(engine: Engine, *, schema: str = "runqueue") -> int | None:
    """The version that the database has, None where there is no schema."""
    schema = schema_name(schema)
    with engine.connect() as connection:
        return recorded_version(connection, schema)


def missing(
    connection: Connection,
    *,
    schema: str = "runqueue",
    indexes: tuple[Index, ...] = (),
    migrations: Sequence[str] = (),
) -> list[str]:
    """What of the indexes and the plugins' migrations there is still to be made, in words. Changes nothing."""
    branches = [] if _is_in_a_hosts_lineage(connection, schema) else _branches(migrations)
    return plugins.missing(connection, schema, indexes, branches)


def sql(*, schema: str = "runqueue", migrations: Sequence[str] = ()) -> str:
    """The DDL of all revisions, for people who run it themselves."""
    schema = schema_name(schema)
    parts = [f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n', _sql(_config(schema, None), "head")]
    for branch in _branches(migrations):
        before, after = (
            [f"{x.compile(dialect=_DIALECT, compile_kwargs=_LITERAL)};\n".lstrip() for x in statements]
            for statements in (branch.before(schema), branch.after(schema))
        )
        revisions = _sql(_config(schema, None, branch), f"{branch.under}:{branch.label}@head")
        parts += [*before, revisions, *after]
    return "\n".join(parts)


def _sql(config: Config, revisions: str) -> str:
    out = io.StringIO()
    config.output_buffer = out
    with _ALEMBIC_IS_GLOBAL:
        command.upgrade(config, revisions, sql=True)
    return out.getvalue()


def include_name(
    name: str | None, type_: Literal["schema", "table"] | str, parent_names: Any, *, schema: str = "runqueue"
) -> bool:
    """For a host's `context.configure(include_name=…)` with `include_schemas=True`: leaves our schema alone."""
    del parent_names
    return not (type_ == "schema" and name == schema)


def _config(schema: str, connection: Connection | None, branch: Branch | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", "runqueue_migrations:")
    config.set_main_option("path_separator", "newline")
    config.attributes["schema"] = schema
    config.attributes["connection"] = connection
    if branch is not None:
        config.set_main_option("version_locations", f"runqueue_migrations:versions\n{branch.location}")
        config.attributes["version_table"] = branch.version_table
    return config


def _branches(migrations: Sequence[str]) -> list[Branch]:
    """Look at the plugins' revisions. Raises PluginError for what is no branch of its own."""
    found = [_branch(x) for x in dict.fromkeys(migrations)]
    labels = [x.label for x in found]
    for branch in found:
        if labels.count(branch.label) > 1:
            raise PluginError(f"several plugins bring migrations with the branch label {branch.label!r}")
    return found


def _branch(location: str) -> Branch:
    try:
        core = ScriptDirectory.from_config(_config("runqueue", None))
        own = {x.revision for x in core.walk_revisions()}
        both = ScriptDirectory.from_config(_config("runqueue", None, Branch(location, "", "", "")))
        theirs = [x for x in both.walk_revisions() if x.revision not in own]
    except Exception as error:  # whatever the modules of the revisions raise
        raise PluginError(f"the migrations {location!r} cannot be read: {error!r}") from error
    bases = [x for x in theirs if x.down_revision is None]
    heads = [x.revision for x in theirs if x.is_head]
    labels = sorted({y for x in bases for y in x.branch_labels})
    if len(bases) != 1 or len(heads) != 1 or len(labels) != 1 or not _LABEL.fullmatch(labels[0]):
        raise PluginError(
            f"the migrations {location!r} must be one line of revisions, the first with no down_revision and with one "
            f"branch label, of at most 40 lower-case letters, digits and _: found are {len(bases)} first ones, "
            f"{len(heads)} last ones, and the labels {', '.join(labels) or '(none)'}"
        )
    under = core.get_heads()[0]
    return Branch(location, labels[0], heads[0], under, frozenset(x.revision for x in theirs if _needs(both, x, under)))


def _needs(scripts: ScriptDirectory, script: Script, revision: str) -> bool:
    """Whether a revision comes after another, in its line or as what it depends on."""
    below = (*util.to_tuple(script.down_revision, ()), *util.to_tuple(script.dependencies, ()))
    return any(
        x.revision == revision or _needs(scripts, x, revision) for name in below for x in scripts.get_revisions(name)
    )


@contextmanager
def _under(connection: Connection, schema: str, branch: Branch) -> Iterator[None]:
    for statement in branch.before(schema):
        connection.execute(statement)
    yield
    for statement in branch.after(schema):
        connection.execute(statement)


def _refuse_inside_a_migration() -> None:
    # alembic's proxies are installed only while an environment runs; a nested one would remove them on its way out
    if getattr(context, "_proxy", None) is not None and not _ALEMBIC_IS_GLOBAL.locked():
        raise RunqueueError(
            "upgrade() was called inside a running alembic migration: add 'runqueue_migrations:versions' to the "
            "application's version_locations instead"
        )


def _is_in_a_hosts_lineage(connection: Connection, schema: str) -> bool:
    version = recorded_version(connection, schema)
    if version is None or connection.execute(select(func.to_regclass(f'"{schema}".{VERSION_TABLE}'))).scalar():
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
