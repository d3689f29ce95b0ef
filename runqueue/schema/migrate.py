"""Creating and upgrading the schema. It and `revisions` are the only modules that import alembic."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from alembic import command
from sqlalchemy import Column, Connection, Engine, Index, MetaData, String, Table, create_engine, func, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateIndex, CreateSchema, DropTable

from runqueue.errors import InvalidRun, RunqueueError
from runqueue.schema import branches as plugins
from runqueue.schema import indexes as of_plugins
from runqueue.schema import revisions
from runqueue.schema.branches import VERSION_TABLE, Branch
from runqueue.schema.indexes import Needs
from runqueue.schema.owned import is_ours
from runqueue.schema.patience import index_patience, index_turn, patiently
from runqueue.schema.plan import Step, steps
from runqueue.schema.tables import SCHEMA_VERSION, schema_name
from runqueue.schema.version import recorded_version

_DIALECT, _LITERAL = postgresql.dialect(), {"literal_binds": True}  # type: ignore[no-untyped-call]

log = logging.getLogger("runqueue")


def upgrade(
    engine: Engine | str,
    *,
    schema: str = "runqueue",
    indexes: tuple[Index, ...] = (),
    migrations: Sequence[str] = (),
    before: bool = False,
    wait: float = 60,
    lock_timeout: float = 0.5,
) -> int:
    """Bring the schema to this release's version and return the version that it has then.

    Safe when many processes call it at once: one works, the others wait at most `wait` seconds and find it done.
    No statement waits longer than `lock_timeout` seconds for a table that others use, because everybody would wait
    behind it; all is undone then and tried again, for `wait` seconds. `before`: only the revisions that go before the
    new code, while the old code still runs. `indexes` are those that a claim policy and plugins bring; they are made
    concurrently, and rebuilt where a crash left an invalid one. `migrations` are the version locations of plugins;
    they run after the library's, in the same transaction. A plugin that is not named is left as it is. Opens its own
    connection; not to be called inside a migration of the application. Raises RunqueueError, with the sessions that
    held the locks, and PluginError for migrations that cannot be used.
    """
    schema = schema_name(schema)
    branches = revisions.read_branches(migrations)
    revisions.refuse_inside_a_migration()

    def work(connection: Connection) -> None:
        if not _is_in_a_hosts_lineage(connection, schema):
            _upgrade(connection, schema, branches, before)
        elif branches:
            log.warning(
                "the application's own migrations made %r: %s must be in its version_locations too",
                schema,
                ", ".join(migrations),
            )

    own = create_engine(engine) if isinstance(engine, str) else engine
    try:
        patiently(own, schema, work, wait=wait, lock_timeout=lock_timeout)
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
    branches = revisions.read_branches(migrations)

    def work(connection: Connection) -> None:
        with revisions.ALEMBIC_IS_GLOBAL:
            for branch in reversed(branches):
                with _under(connection, schema, branch):
                    command.downgrade(revisions.config(schema, connection, branch), f"{branch.label}@base")
                connection.execute(DropTable(branch.table(schema)))
            if revision == "base" and (left := plugins.others(connection, schema)):
                raise RunqueueError(f"{schema!r} has tables of plugins: name their migrations too: {', '.join(left)}")
            command.downgrade(revisions.config(schema, connection), revision)

    patiently(engine, schema, work, wait=60, lock_timeout=0.5)


def current(engine: Engine, *, schema: str = "runqueue") -> int | None:
    """The version that the database has, None where there is no schema."""
    schema = schema_name(schema)
    with engine.connect() as connection:
        return recorded_version(connection, schema)


def plan(
    connection: Connection,
    *,
    schema: str = "runqueue",
    indexes: tuple[Index, ...] = (),
    migrations: Sequence[str] = (),
) -> list[Step]:
    """What `upgrade` would run, with the locks that each statement takes. Changes nothing.

    Empty where there is nothing to do. In the lineage of an application its own alembic tells what is to run.
    """
    schema = schema_name(schema)
    branches = revisions.read_branches(migrations)
    found = []
    if not _is_in_a_hosts_lineage(connection, schema):
        for branch in (None, *branches):
            texts = revisions.by_revision(schema, branch)
            found += [
                (x.revision, (x.module.__doc__ or "").strip().splitlines()[0], revisions.applies(x), texts[x.revision])
                for x in revisions.pending(_recorded(connection, schema, branch), branch)
            ]
    return [*steps(found), *_indexes_to_make(connection, schema, indexes)]


def needs(
    connection: Connection,
    *,
    schema: str = "runqueue",
    indexes: tuple[Index, ...] = (),
    migrations: Sequence[str] = (),
) -> Needs:
    """What of the tables' own indexes, `indexes` and `migrations` is missing, invalid, or no longer needed."""
    branches = revisions.read_branches(migrations)
    found = of_plugins.needs(connection, schema, indexes)
    if _is_in_a_hosts_lineage(connection, schema):
        return found
    undone = [x.location for x in branches if not x.is_done(connection, schema)]
    others = [x for x in plugins.others(connection, schema) if x not in {y.label for y in branches}]
    return found.with_migrations(undone, others)


def missing(
    connection: Connection,
    *,
    schema: str = "runqueue",
    indexes: tuple[Index, ...] = (),
    migrations: Sequence[str] = (),
) -> list[str]:
    """What of the indexes and the plugins' migrations there is still to be made, in words. Changes nothing."""
    return needs(connection, schema=schema, indexes=indexes, migrations=migrations).to_make


def sql(*, schema: str = "runqueue", migrations: Sequence[str] = (), since: str | None = None) -> str:
    """The DDL of all revisions, or of those after `since`, for people who run it themselves, with `psql -f`.

    Raises InvalidRun for a `since` that is no revision of the library. Revisions of plugins are printed whole.
    """
    schema = schema_name(schema)
    if since is None:
        parts = [f'CREATE SCHEMA IF NOT EXISTS "{schema}";\n\n', *revisions.printed(schema, "head")]
    elif since in (names := [x.revision for x in revisions.line()]):
        parts = revisions.printed(schema, f"{since}:head")
    else:
        raise InvalidRun("since", f"must be one of the revisions {', '.join(names)}, not {since!r}")
    for branch in revisions.read_branches(migrations):
        before, after = (
            [f"{x.compile(dialect=_DIALECT, compile_kwargs=_LITERAL)};\n\n".lstrip() for x in statements]
            for statements in (branch.before(schema), branch.after(schema))
        )
        parts += [*before, *revisions.printed(schema, f"{branch.under}:{branch.label}@head", branch), *after]
    return "".join(parts)


def include_name(
    name: str | None,
    type_: Literal["schema", "table"] | str,
    parent_names: Any,
    *,
    schema: str = "runqueue",
    shared: bool = False,
    tables: Collection[str] = (),
) -> bool:
    """For a host's `context.configure(include_name=…)`: its autogenerate leaves our tables alone.

    As it is, it is for `include_schemas=True` and a schema that only we are in. `shared`: the application has tables
    in that schema too, as in `public`, so that ours are told by their names; with these `tables`, such as those of
    plugins.
    """
    shared = shared or schema == "public"
    if type_ == "table" and shared and parent_names.get("schema_name") in (None, schema):
        return not is_ours(name or "", frozenset(tables))
    return shared or not (type_ == "schema" and name == schema)


def _upgrade(connection: Connection, schema: str, branches: list[Branch], before: bool) -> None:
    # asked first, because the statement needs the right to make schemas even where there is one
    if not connection.dialect.has_schema(connection, schema):
        connection.execute(CreateSchema(schema))
    with revisions.ALEMBIC_IS_GLOBAL:
        have = _recorded(connection, schema)
        to_run = revisions.pending(have, before=before)
        if to_run:
            command.upgrade(revisions.config(schema, connection), to_run[-1].revision)
        some_are_left = len(to_run) < len(revisions.pending(have))
        for branch in branches:
            if some_are_left and branch.over:
                continue  # it needs a revision that is left for later
            of_plugin = revisions.pending(_recorded(connection, schema, branch), branch, before=before)
            with _under(connection, schema, branch):
                if of_plugin:
                    command.upgrade(revisions.config(schema, connection, branch), of_plugin[-1].revision)


def _recorded(connection: Connection, schema: str, branch: Branch | None = None) -> list[str]:
    if branch is not None:
        return plugins.recorded(connection, branch.table(schema))
    own = Table(VERSION_TABLE, MetaData(schema=schema), Column("version_num", String(32)))
    return plugins.recorded(connection, own)


@contextmanager
def _under(connection: Connection, schema: str, branch: Branch) -> Iterator[None]:
    for statement in branch.before(schema):
        connection.execute(statement)
    yield
    for statement in branch.after(schema):
        connection.execute(statement)


def _is_in_a_hosts_lineage(connection: Connection, schema: str) -> bool:
    version = recorded_version(connection, schema)
    if version is None or connection.execute(select(func.to_regclass(f'"{schema}".{VERSION_TABLE}'))).scalar():
        return False
    if version < SCHEMA_VERSION:
        raise RunqueueError(
            f"the tables in {schema!r} were made by the application's own migrations: run those to upgrade them"
        )
    return True


def _indexes_to_make(connection: Connection, schema: str, indexes: tuple[Index, ...]) -> list[Step]:
    found = of_plugins.needs(connection, schema, indexes, tables_too=False)
    return list(
        steps(
            (str(x.name), "An index that the claim policy or a plugin brings.", "before", [_concurrently(x)])
            for x in (*found.missing, *found.invalid)
        )
    )


def _concurrently(index: Index) -> str:
    index.dialect_options["postgresql"]["concurrently"] = True
    return str(CreateIndex(index).compile(dialect=_DIALECT))


def _make_indexes(engine: Engine, schema: str, indexes: tuple[Index, ...], wait: float) -> None:
    with engine.connect() as connection:
        found = of_plugins.needs(connection, schema, indexes)
    if not found.missing and not found.invalid:
        return
    with (
        engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection,
        index_turn(connection, schema, wait),
        index_patience(engine, connection, schema, wait),
    ):
        found = of_plugins.needs(connection, schema, indexes)
        for statement in (*found.drops(), *found.creates()):
            connection.execute(statement)
