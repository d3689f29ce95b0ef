"""Two releases on one database: which go together, which refuse, and in which order a deploy runs the revisions."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from io import BytesIO
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import NullPool, create_engine, text
from support.catalog import contents

from runqueue import RunQueue, RunStatus, SchemaOutdated
from runqueue.schema import migrate, revisions
from runqueue.schema.tables import NEEDED_VERSION, SCHEMA_VERSION

ROOT = Path(__file__).parents[2]
LANGGRAPH = "runqueue_migrations:langgraph"
BRANCHES = [None, LANGGRAPH]


@pytest.fixture
def engine(blank_url):
    return create_engine(blank_url, poolclass=NullPool)


def line(location):
    return revisions.line(None if location is None else revisions.read_branches([location])[0])


# --------------------------------------------------------------------------------------------------- the revisions


@pytest.mark.parametrize("location", BRANCHES)
def test_every_revision_says_whether_it_goes_before_or_after_the_new_code(location):
    for script in line(location):
        assert vars(script.module).get("applies") in ("before", "after"), script.path
        assert f"Deploy: {script.module.applies} the new code" in script.module.__doc__, script.path
        assert "Locks: " in script.module.__doc__, script.path


@pytest.mark.parametrize("location", BRANCHES)
def test_revisions_are_frozen_they_import_nothing_that_changes(location):
    for script in line(location):
        tree = ast.walk(ast.parse(Path(script.path).read_text()))
        imported = {
            name.partition(".")[0]
            for x in tree
            if isinstance(x, ast.Import | ast.ImportFrom)
            for name in ([y.name for y in x.names] if isinstance(x, ast.Import) else [x.module or "."])
        }
        assert imported <= {"alembic", "sqlalchemy", "__future__", "datetime"}, script.path


def test_the_release_needs_the_newest_revision_that_goes_before_it(engine):
    """Each revision is a version; the code bears the absence of those that go after it, and of no other."""
    needed = 0
    for number, script in enumerate(revisions.line(), 1):
        with engine.begin() as connection:
            connection.execute(text("create schema if not exists runqueue"))
            command.upgrade(revisions.config("runqueue", connection), script.revision)
        assert migrate.current(engine) == number
        needed = number if revisions.applies(script) == "before" else needed
    assert (number, needed) == (SCHEMA_VERSION, NEEDED_VERSION)


def test_there_and_back_and_there_again_with_every_branch(engine):
    """Down to each revision and up again, with the tables of a plugin beside it where it allows that."""
    seen = {}
    migrate.upgrade(engine, migrations=[LANGGRAPH])
    with engine.connect() as connection:
        whole = contents(connection, "runqueue")
    for script in revisions.line():
        migrate.downgrade(engine, script.revision)
        with engine.connect() as connection:
            seen[script.revision] = contents(connection, "runqueue")
        migrate.upgrade(engine)
        migrate.downgrade(engine, script.revision)
        with engine.connect() as connection:
            assert contents(connection, "runqueue") == seen[script.revision]
        migrate.upgrade(engine)
        with engine.connect() as connection:
            assert contents(connection, "runqueue") == whole
    migrate.downgrade(engine, migrations=[LANGGRAPH])
    with engine.connect() as connection:
        assert contents(connection, "runqueue") == []
    migrate.upgrade(engine, migrations=[LANGGRAPH])
    with engine.connect() as connection:
        assert contents(connection, "runqueue") == whole


# ------------------------------------------------------------------------------------------- new code, older schema


def test_new_code_on_the_previous_schema_refuses_and_changes_nothing(engine):
    migrate.upgrade(engine)
    migrate.downgrade(engine, revisions.line()[NEEDED_VERSION - 2].revision)
    queue = RunQueue(engine)
    for call in (
        lambda: queue.enqueue("k", tenant_id="t"),
        lambda: queue.claim("w"),
        queue.reap,
        queue.check,
    ):
        with pytest.raises(SchemaOutdated, match=f"at version {NEEDED_VERSION - 1}, .* needs version {NEEDED_VERSION}"):
            call()
    with engine.connect() as connection:
        assert connection.execute(text("select count(*) from runqueue.agent_runs")).scalar_one() == 0
    migrate.upgrade(engine)
    assert queue.enqueue("k", tenant_id="t").status is RunStatus.PENDING


# ------------------------------------------------------------------------------------------- older code, new schema


def says(engine, comment):
    with engine.begin() as connection:
        connection.exec_driver_sql(f"comment on table runqueue.agent_runs is '{comment}'")


def test_a_newer_schema_that_only_added_is_used(engine):
    migrate.upgrade(engine)
    for comment in ("runqueue schema 99", f"runqueue schema 99, for code of {SCHEMA_VERSION}"):
        says(engine, comment)
        assert RunQueue(engine).enqueue("k", tenant_id="t").status is RunStatus.PENDING


def test_a_newer_schema_that_took_something_away_is_refused(engine):
    migrate.upgrade(engine)
    says(engine, f"runqueue schema 99, for code of {SCHEMA_VERSION + 1}")
    with pytest.raises(SchemaOutdated, match=f"at version 99.* of version {SCHEMA_VERSION + 1} or newer.*upgrade"):
        RunQueue(engine).enqueue("k", tenant_id="t")


PREVIOUS = """
import json, sys
from runqueue import RunQueue, Settings
from runqueue.schema.tables import SCHEMA_VERSION

queue = RunQueue(sys.argv[1], claim=sys.argv[2], settings=Settings(retry_base=0))
out = {"version": SCHEMA_VERSION, "done": []}
for claimed in queue.claim("previous", limit=2):
    queue.heartbeat([claimed.lease])
    with queue.transaction(claimed.lease) as tx:
        tx.emit("said", {"by": "previous"})
        tx.save_checkpoint({"by": "previous"})
    queue.complete(claimed.lease, {"by": "previous"})
    out["done"].append(str(claimed.run.id))
out["enqueued"] = [str(queue.enqueue("k", {"n": n}, tenant_id="t").id) for n in range(2)]
[failing] = queue.claim("previous")
queue.fail(failing.lease, ValueError("once"))
out["cancelled"] = str(queue.enqueue("k", tenant_id="t", delay=60).id)
queue.cancel(out["cancelled"])
queue.reap()
queue.stats()
out["listed"] = len(queue.list().runs)
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def previous(tmp_path_factory):
    """The source of the last commit that was made for the schema before this one."""

    def git(*words):
        try:
            return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("not a checkout with its history")

    made = f"SCHEMA_VERSION = {SCHEMA_VERSION}"
    commits = git("log", "--format=%H", "-S", made, "--", "runqueue/schema/tables.py").decode().split()
    if not commits:
        pytest.skip("the commit that made this schema version is not in the history that is here")
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(
        fileobj=BytesIO(git("archive", f"{commits[-1]}^", "runqueue", "plugins", "pyproject.toml"))
    ) as archive:
        archive.extractall(folder, filter="data")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    installed = folder / f"runqueue-{project['version']}.dist-info"  # as pip would have left it
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: runqueue\nVersion: {project['version']}\n")
    plugins = "".join(f"{name} = {at}\n" for name, at in project["entry-points"]["runqueue"].items())
    (installed / "entry_points.txt").write_text(f"[runqueue]\n{plugins}")
    return folder


@pytest.mark.parametrize("policy", ["reaper", "takeover"])
def test_the_previous_release_works_on_this_schema_together_with_this_one(engine, previous, blank_url, policy):
    migrate.upgrade(engine)
    queue = RunQueue(engine, claim=policy)
    ids = [queue.enqueue("k", {"n": n}, tenant_id="t").id for n in range(3)]
    path = os.pathsep.join([str(previous), str(previous / "plugins")])
    done = subprocess.run(
        [sys.executable, "-c", PREVIOUS, blank_url, policy],
        env=os.environ | {"PYTHONPATH": path}, cwd=previous, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["version"] == SCHEMA_VERSION - 1
    assert said["done"] == [str(x) for x in ids[:2]]
    for run in map(queue.get, ids[:2]):
        assert (run.status, run.result) == (RunStatus.DONE, {"by": "previous"})
        assert "said" in [x.type for x in queue.events(run.id)]
    assert queue.get(said["cancelled"]).status is RunStatus.CANCELLED
    left = queue.claim("this", limit=10)
    assert {str(x.run.id) for x in left} == {str(ids[2]), *said["enqueued"]}
    for claimed in left:
        queue.complete(claimed.lease)
    assert {x.status for x in queue.list().runs} == {RunStatus.DONE, RunStatus.CANCELLED}
    queue.close()


# --------------------------------------------------------------------------------- what goes after all of the old code

AFTER = '''
"""Takes something away. Deploy: after the new code. Locks: none."""

from alembic import op

revision, down_revision, branch_labels, depends_on, applies = "rq9999", {head!r}, None, None, "after"


def upgrade():
    op.create_table_comment("agent_runs", "runqueue schema 99, for code of {next}", schema="runqueue")


def downgrade():
    op.create_table_comment("agent_runs", "runqueue schema {now}", schema="runqueue")
'''

DEPLOY = """
import sys
from sqlalchemy import create_engine
from runqueue.schema import migrate

engine = create_engine(sys.argv[1])
with engine.connect() as connection:
    print(*(f"{x.name}:{x.applies}" for x in migrate.plan(connection)[-2:]))
print(migrate.upgrade(engine, before=True), migrate.upgrade(engine, before=True), migrate.upgrade(engine))
engine.dispose()
"""


def test_what_goes_after_the_new_code_is_left_for_later_where_asked(engine, tmp_path, blank_url):
    shutil.copytree(ROOT / "alembic/runqueue_migrations", tmp_path / "runqueue_migrations")
    head = revisions.line()[-1].revision
    made = AFTER.format(head=head, next=SCHEMA_VERSION + 1, now=SCHEMA_VERSION).strip()
    (tmp_path / "runqueue_migrations/versions/rq9999_after.py").write_text(made)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", DEPLOY, blank_url],
        env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plan, versions = done.stdout.splitlines()
    assert plan == f"{head}:before rq9999:after"
    assert versions == f"{SCHEMA_VERSION} {SCHEMA_VERSION} 99"
    with pytest.raises(SchemaOutdated, match="upgrade the package"):
        RunQueue(engine).check()
