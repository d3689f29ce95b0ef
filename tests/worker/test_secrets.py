"""No secret of an error, of a statement or of the database's URL reaches the database's tables or the logs."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from support.here import running
from support.tools import eventually

from runqueue import RunQueue, Settings, Worker

SECRET = "S3cr3tWord9"

TEXTS = [
    f"login failed for password={SECRET}",
    f'{{"password": "{SECRET}"}}',
    f"GET https://api.example/v1?token={SECRET} returned 401",
    f"cannot connect to postgresql://u:{SECRET}@db/x",
    f"cannot connect to postgresql://db/x?password={SECRET}",
    f"Authorization: Bearer {SECRET}",
    f"sslpassword={SECRET} was wrong",
]


def _dump(engine: Engine) -> str:
    """All that the library's tables hold, and what the sessions call themselves."""
    tables = ["agent_runs", "agent_run_events", "agent_run_checkpoints", "agent_runs_history"]
    with engine.connect() as connection:
        rows = [
            str(row) for table in tables for row in connection.execute(text(f"select t::text from runqueue.{table} t"))
        ]
        rows += [str(row) for row in connection.execute(text("select application_name, query from pg_stat_activity"))]
    return "\n".join(rows)


def test_secrets_in_errors_are_stored_nowhere(plain: RunQueue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    @plain.handler("leak")
    def leak(run: Any) -> None:
        raise ValueError(TEXTS[run.input])

    @plain.handler("leak sql")
    def leak_sql(run: Any) -> None:
        with run.transaction() as tx:
            tx.connection.execute(text("select cast(:password as int)"), {"password": SECRET})

    @plain.handler("leak cause")
    def leak_cause(run: Any) -> None:
        try:
            raise ValueError(TEXTS[0])
        except ValueError as error:
            raise RuntimeError("outer") from error

    with running(Worker(plain)):
        runs = [plain.enqueue("leak", n, tenant_id="acme", max_attempts=1) for n in range(len(TEXTS))]
        runs += [plain.enqueue(kind, tenant_id="acme", max_attempts=1) for kind in ("leak sql", "leak cause")]
        for run in runs:
            dead = plain.wait(run.id, 10)
            assert dead.status == "dead"
            assert dead.error_message
    assert SECRET not in _dump(plain.engine)
    assert SECRET not in caplog.text


def test_password_of_the_database_is_logged_nowhere(
    url: str, settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = make_url(url).set(password=SECRET).update_query_dict({"port": "1", "host": "127.0.0.1"})
    right = make_url(url).set(password=SECRET)
    queue = RunQueue(right.render_as_string(hide_password=False), settings=settings)
    queue.handler("work")(lambda run: "done")
    with running(Worker(queue)):
        assert queue.wait(queue.enqueue("work", tenant_id="acme").id, 10).status == "done"
    queue.engine.dispose()
    lost = RunQueue(wrong.render_as_string(hide_password=False), settings=settings)
    lost.handler("work")(lambda run: "done")
    with pytest.raises(Exception, match="connection") as refused, running(Worker(lost)):
        pass
    engine = create_engine(url)
    assert SECRET not in _dump(engine)
    engine.dispose()
    assert SECRET not in caplog.text
    assert SECRET not in str(refused.value)


def test_a_lost_listener_names_no_password(url: str, plain: RunQueue, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    bad = make_url(url).set(password=SECRET).update_query_dict({"port": "1", "host": "127.0.0.1"})
    settings = Settings(**{**vars(plain.settings), "listen_url": bad.render_as_string(hide_password=False)})
    queue = RunQueue(plain.engine, settings=settings)
    queue.handler("work")(lambda run: "done")
    with running(Worker(queue)):
        eventually(lambda: "not listening" in caplog.text, 10, what="the warning")
    assert SECRET not in caplog.text
