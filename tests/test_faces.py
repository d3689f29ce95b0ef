"""The sync and the async faces say the same; and what every statement and every module promises about its SQL."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

import runqueue
from runqueue import AsyncRunQueue, RunContext, RunQueue
from runqueue.core import Core
from runqueue.policies import Reaper, Takeover
from runqueue.schema.tables import tables
from runqueue.statements import control, enqueue, expiry, finish, journal, lease, reading, rules, standing
from runqueue.statements.claim import claim
from runqueue.transactions import AsyncTransaction, Transaction
from runqueue.types import RunStatus
from runqueue.worker.context import SyncRunContext

ROOT = Path(__file__).parent.parent
SHIPPED = sorted(
    path
    for top in ("runqueue", "plugins/runqueue_plugins", "alembic/runqueue_migrations")
    for path in (ROOT / top).rglob("*.py")
)

# ------------------------------------------------------------------------------------------------------------- faces

PAIRS = [(RunQueue, AsyncRunQueue), (SyncRunContext, RunContext), (Transaction, AsyncTransaction)]
SAID_IN_ASYNC = {
    "AsyncConnection": "Connection",
    "AsyncSession": "Session",
    "AsyncEngine": "Engine",
    "AsyncIterator": "Iterator",
    "AsyncTransaction": "Transaction",
    "AsyncRunQueue": "RunQueue",
}
BY_NATURE = {"wait_cancelled": "a coroutine is waited for with a timeout by its caller, a thread has to be told"}
PLAIN = {"handler", "over", "plugins"}
"""Touch no database, so they are plain methods on both sides."""

pairs = pytest.mark.parametrize(("sync", "other"), PAIRS, ids=lambda x: x.__name__)


def public(face):
    return {name: member for name, member in inspect.getmembers(face) if not name.startswith("_")}


def signature(member):
    member = getattr(member, "__wrapped__", member)
    words = str(inspect.signature(member))
    for said, meant in SAID_IN_ASYNC.items():
        words = re.sub(rf"\b{said}\b", meant, words)
    return words


@pairs
def test_both_faces_have_the_same_methods(sync, other):
    assert public(sync).keys() == public(other).keys()
    assert public(sync), "nothing is compared"


@pairs
def test_both_faces_take_and_return_the_same(sync, other):
    for name, member in public(sync).items():
        twin = public(other)[name]
        assert isinstance(member, property) == isinstance(twin, property), name
        if callable(member) and name not in BY_NATURE:
            assert signature(member) == signature(twin), name


@pairs
def test_what_reaches_the_database_is_a_coroutine_on_one_side_only(sync, other):
    for name, member in public(other).items():
        if not callable(member):
            continue
        inner = getattr(member, "__wrapped__", member)
        waits = inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner)
        own = name in public(sync) and member is public(sync)[name]  # of the common base: plain for both
        assert waits != (own or name in PLAIN), name
        twin = getattr(public(sync)[name], "__wrapped__", public(sync)[name])
        assert not inspect.iscoroutinefunction(twin), name
        assert not inspect.isasyncgenfunction(twin), name


def test_both_queues_are_built_from_the_same():
    assert signature(RunQueue.__init__) == signature(AsyncRunQueue.__init__)


@pytest.mark.parametrize(("sync", "other"), PAIRS[:1])
def test_both_queues_are_documented_in_the_same_words(sync, other):
    for name, member in public(sync).items():
        assert member.__doc__, name
        assert member.__doc__ == public(other)[name].__doc__, name


def test_a_wait_for_a_cancel_needs_no_argument_on_either_side():
    inspect.signature(SyncRunContext.wait_cancelled).bind(None)
    inspect.signature(RunContext.wait_cancelled).bind(None)


VERBS = """
enqueue enqueue_many claim heartbeat complete complete_many fail release settle_cancelled reap transaction cancel retry
get list events wait stats explain pause resume handler rules set_rule tenants tenant set_tenant plugins
"""


def test_the_queue_has_every_verb():
    assert set(VERBS.split()) <= public(RunQueue).keys()


# -------------------------------------------------------------------------------------------------------- public names

PROMISED = """
RunQueue AsyncRunQueue Worker RunContext Run RunStatus NewRun Lease ClaimedRun Settings LeaseLost RunCancelled
RunNotFound InvalidRun SchemaOutdated PluginError hookimpl hookspec Retry Discard Snooze
"""


def test_every_public_name_is_there():
    assert set(PROMISED.split()) <= set(runqueue.__all__)
    assert len(set(runqueue.__all__)) == len(runqueue.__all__)
    for name in runqueue.__all__:
        assert getattr(runqueue, name) is not None
        assert name in dir(runqueue)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = runqueue.Nothing


def modules_after(code):
    code += "; import sys; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(done.stdout.split())


def test_the_bare_import_is_light():
    heavy = {"sqlalchemy", "alembic", "psycopg", "pluggy", "tenacity", "click", "rich", "asyncio"}
    assert not modules_after("import runqueue; runqueue.Settings; runqueue.NewRun; runqueue.LeaseLost") & heavy
    assert "sqlalchemy" in modules_after("import runqueue; runqueue.RunQueue")
    assert "alembic" not in modules_after("import runqueue; runqueue.RunQueue; runqueue.Worker")


# ----------------------------------------------------------------------------------------------------------------- SQL

EXECUTES = {"text", "execute", "exec_driver_sql", "scalar", "scalars", "executescript", "executemany", "DDL", "SQL"}
"""Calls whose first argument is SQL, or a statement."""


def unsafe_sql(source):
    """Lines at which a call of EXECUTES is given a text that is put together, not a constant."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in EXECUTES and _put_together(node.args[0]):
                yield node.lineno


def _put_together(node):
    if isinstance(node, ast.JoinedStr):
        return True
    if isinstance(node, ast.BinOp):
        return _stringy(node.left) or _stringy(node.right) or _put_together(node.left) or _put_together(node.right)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        composed = isinstance(node.func.value, ast.Call) and ast.unparse(node.func.value.func) == "sql.SQL"
        return node.func.attr in {"format", "format_map", "join", "replace"} and not composed
    return False


def _stringy(node):
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


# the kit makes databases, whose names cannot be parameters; they are its own
@pytest.mark.parametrize(
    "path", [x for x in SHIPPED if x.parent.name != "testing"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_no_sql_is_put_together_from_strings(path):
    assert list(unsafe_sql(path.read_text())) == []


@pytest.mark.parametrize(
    "source",
    [
        'text(f"select {x}")', 'c.execute(f"select {x}")', 'c.execute("select %s" % x)', 'text("select " + x)',
        'sa.text("select {}".format(x))', 'text("a" f"{x}")', 'c.exec_driver_sql(" ".join(x))',
        'sql.SQL(f"listen {x}").format(y)',
    ],
)  # fmt: skip
def test_sql_that_is_put_together_is_seen(source):
    assert list(unsafe_sql(source)) == [1]


T = tables("runqueue")
ORDER = Core.build("runqueue", "reaper", (), None).ctx.order
STATEMENTS = {
    **{
        f"claim {type(policy).__name__} {any_kind=}": partial(claim, T, ORDER, policy.arms(), any_kind=any_kind)
        for policy in (Reaper(), Takeover())
        for any_kind in (False, True)
    },
    **{f"sweep {x}": partial(expiry.sweep, T, only_ending=x) for x in (False, True)},
    **{f"settle {x.value}": partial(finish.settle, T, x) for x in RunStatus},
    **{f"page {x}": partial(reading.page, T, ("kind",), status=x, after=True) for x in (*RunStatus, None)},
}
ARGUMENTS = {"sweep", "settle", "page", "record", "set_tenant"}
for module in (control, enqueue, expiry, finish, journal, lease, reading, rules, standing):
    for name, member in vars(module).items():
        if hasattr(member, "cache_clear") and member.__module__ == module.__name__ and name not in ARGUMENTS:
            STATEMENTS[f"{module.__name__.rpartition('.')[2]}.{name}"] = partial(member, T)


def sql(statement):
    return str(statement.compile(dialect=PGDialect_psycopg()))


STATUS = re.compile(r"\bstatus\s*(?:=|<>|!=|in\b|not in\b|=\s*any)\s*(\S*)", re.IGNORECASE)
LITERAL = re.compile(r"\(?'(pending|leased|done|dead|cancelled)'|CASE\b|runqueue\.agent_runs\.status\b")


@pytest.mark.parametrize("name", STATEMENTS)
def test_no_status_is_a_bind_parameter(name):
    compared = STATUS.findall(sql(STATEMENTS[name]()))
    assert [word for word in compared if not LITERAL.match(word)] == []


def test_a_status_that_is_a_bind_parameter_would_be_seen():
    from sqlalchemy import select

    for predicate in (T.runs.c.status == "done", T.runs.c.status.in_(["done"]), T.runs.c.status != "done"):
        [word] = STATUS.findall(sql(select(T.runs.c.id).where(predicate)))
        assert not LITERAL.match(word), word
    assert len([name for name in STATEMENTS if STATUS.search(sql(STATEMENTS[name]()))]) > 15


@pytest.mark.parametrize("name", STATEMENTS)
def test_a_statement_is_built_once_and_asks_the_databases_clock(name):
    statement: Any = STATEMENTS[name]()
    words = sql(statement).lower()
    for other_clock in ("now()", "current_timestamp", "transaction_timestamp"):
        assert other_clock not in words
    for predicate in re.findall(r"where (.*?)(?:order by|limit|returning|\bset\b|$)", words, re.DOTALL):
        assert "clock_timestamp" not in predicate, "a volatile clock in a predicate is served by no index"
    if not name.startswith("claim"):  # built once by `operations.claim.statement`
        assert STATEMENTS[name]() is statement
