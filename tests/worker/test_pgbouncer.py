"""Behind a real PgBouncer in transaction mode: two worker processes, and fewer sessions than clients."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import textwrap
from pathlib import Path

import pytest
from sqlalchemy import NullPool, create_engine, make_url, text
from support.cli import PROGRAM, environment
from support.postgres import free_port
from support.tools import autocommit, eventually

from runqueue import RunQueue, RunStatus, Settings

BOUNCER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
POOL, RUNS = 3, 40
pytestmark = pytest.mark.skipif(BOUNCER is None, reason="there is no pgbouncer: install the system's package")

APP = """
    import os
    from sqlalchemy import create_engine, text
    from runqueue import RunQueue, Settings

    engine = create_engine(os.environ["POOLED"], connect_args={"prepare_threshold": None})
    queue = RunQueue(engine, settings=Settings(listen_url=os.environ["DIRECT"], poll_interval=5))

    @queue.handler("k")
    def k(run):
        for turn in range(3):
            with run.transaction() as tx:
                tx.connection.execute(text("insert into effects values (:id, :turn)"), {"id": run.id, "turn": turn})
                tx.emit("turn", {"turn": turn})
        return "done"
"""


@pytest.fixture
def pooled(url):
    """The same database through a pooler."""
    at = make_url(url)
    host, port = at.query.get("host") or at.host, at.query.get("port") or at.port or 5432
    owner = {}
    if os.geteuid() == 0:  # it refuses root, and must come to the server's socket
        of = os.stat(host) if str(host).startswith("/") else os.stat(shutil.which("sh"))
        owner = {"user": of.st_uid or 65534, "group": of.st_gid or 65534, "extra_groups": []}
    home, listens = Path(tempfile.mkdtemp(prefix="runqueue-pgbouncer-")), free_port()
    secret = f" password={at.password}" if at.password else ""
    (home / "pgbouncer.ini").write_text(
        f"[databases]\n{at.database} = host={host} port={port} user={at.username}{secret}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {listens}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = transaction\ndefault_pool_size = {POOL}\nmax_client_conn = 200\n"
    )
    home.chmod(0o755)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen([BOUNCER, home / "pgbouncer.ini"], stdout=log, stderr=log, cwd="/", **owner)

    def listening():
        assert process.poll() is None, (home / "log").read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", listens)) == 0

    try:
        eventually(listening, what="the pooler")
        yield f"postgresql+psycopg://{at.username}@127.0.0.1:{listens}/{at.database}"
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(home)


@pytest.mark.slow
def test_two_worker_processes_finish_each_run_once_with_fewer_sessions_than_clients(url, pooled, tmp_path):
    (tmp_path / "app.py").write_text(textwrap.dedent(APP))
    with autocommit(url) as connection:
        connection.execute(text("create table effects (run_id uuid, turn int)"))
    engine = create_engine(pooled, connect_args={"prepare_threshold": None}, poolclass=NullPool)
    queue = RunQueue(engine, settings=Settings(listen_url=url))
    said = [tmp_path / f"worker{n}" for n in range(2)]
    workers = []
    for path in said:
        with path.open("wb") as log:
            workers.append(
                subprocess.Popen(
                    [*PROGRAM, "worker", "app:queue", "--concurrency", "8"], cwd=tmp_path, stderr=log, stdout=log,
                    env=environment(POOLED=pooled, DIRECT=url),
                )
            )  # fmt: skip
    listening = text(
        "select count(*) from pg_stat_activity where datname = current_database() and query ilike 'listen %'"
    )
    try:
        with autocommit(url) as connection:
            eventually(lambda: connection.execute(listening).scalar_one() == 2, 30, what="LISTEN past the pooler")
        runs = [queue.enqueue("k", n, tenant_id="t") for n in range(RUNS)]
        counts = text(
            "select count(*) from pg_stat_activity where datname = current_database() "
            "and backend_type = 'client backend' and query not ilike 'listen %' and pid <> pg_backend_pid()"
        )
        with autocommit(url) as connection:
            most = 0

            def done():
                nonlocal most
                most = max(most, connection.execute(counts).scalar_one())
                left = text("select count(*) from runqueue.agent_runs where status <> 'done'")
                return connection.execute(left).scalar_one() == 0

            eventually(done, 40, what="the end of all runs")
            assert most <= POOL
            rows = connection.execute(text("select run_id, turn from effects")).all()
        assert sorted(rows) == sorted((run.id, turn) for run in runs for turn in range(3))
        assert {queue.get(run.id).status for run in runs} == {RunStatus.DONE}
        assert {queue.get(run.id).attempts for run in runs} == {1}
    finally:
        for worker in workers:
            worker.terminate()
        codes = [worker.wait(30) for worker in workers]
        queue.close()
        engine.dispose()
    logs = "".join(path.read_text() for path in said)
    assert codes == [0, 0], logs
    assert "prepared statement" not in logs


def test_the_session_state_of_one_client_is_not_anothers(url, pooled):
    """Each statement more often than the driver's threshold for preparing; and nothing is set for the session."""
    engine = create_engine(pooled, connect_args={"prepare_threshold": None})
    queue = RunQueue(engine)
    for n in range(12):
        run = queue.enqueue("k", n, tenant_id="t")
        [claimed] = queue.claim("w")
        queue.heartbeat([claimed.lease])
        queue.complete(claimed.lease)
        assert queue.get(run.id).status is RunStatus.DONE
    left = text("select count(*) from pg_prepared_statements")
    settings = text("select name from pg_settings where source = 'session' and name <> 'application_name'")
    with engine.connect() as connection:
        assert connection.execute(left).scalar_one() == 0
        shown = set(connection.execute(settings).scalars())
    assert not shown & {"search_path", "TimeZone", "lock_timeout", "statement_timeout"}
    queue.close()
    engine.dispose()
