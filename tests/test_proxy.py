"""The proxy fails as it says, seen by a plain driver."""

from __future__ import annotations

import socket
import threading
import time

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy.engine import make_url
from support.postgres import own_server
from support.proxy import Proxy
from support.tools import eventually

pytestmark = pytest.mark.slow


def dsn(url):
    parsed = make_url(url)
    return make_conninfo(host=parsed.host or parsed.query["host"], port=parsed.port or parsed.query["port"],
                         user=parsed.username, dbname=parsed.database)  # fmt: skip


@pytest.fixture(scope="module")
def server():
    with own_server() as server, psycopg.connect(dsn(server.url())) as connection:
        connection.execute("create table t (n int)")
        connection.commit()
        yield server


@pytest.fixture(params=["tcp", "socket"])
def proxy(request, server):
    url = server.url()
    with psycopg.connect(dsn(url)) as connection:
        connection.execute("truncate t")
    if request.param == "socket":
        url = f"postgresql+psycopg://postgres@/postgres?host={server.data}&port={server.port}"
    with Proxy(url) as proxy:
        yield proxy


@pytest.fixture
def connect(proxy):
    opened = []

    def connect(**options):
        opened.append(psycopg.connect(dsn(proxy.url), **options))
        return opened[-1]

    yield connect
    for connection in opened:
        connection.close()


def rows(server, n):
    with psycopg.connect(dsn(server.url())) as connection:
        return connection.execute("select count(*) from t where n = %s", [n]).fetchone()[0]


def test_it_forwards_small_and_large(proxy, connect):
    connection = connect()
    assert connection.execute("select 1").fetchone() == (1,)
    assert connection.execute("select %s::text", ["x" * 3_000_000]).fetchone() == ("x" * 3_000_000,)
    assert proxy.connections == 1


def test_a_closed_connection_is_closed_at_the_server(proxy, connect, server):
    connection = connect()
    pid = connection.info.backend_pid
    connection.close()
    gone = "select 1 where not exists (select from pg_stat_activity where pid = %s)"
    with psycopg.connect(dsn(server.url()), autocommit=True) as direct:
        eventually(lambda: direct.execute(gone, [pid]).fetchone(), what="an end of the backend")
    eventually(lambda: proxy.connections == 0)


def test_cut_resets_all_and_serves_new_ones(proxy, connect):
    first, second = connect(), connect()
    proxy.cut()
    for connection in (first, second):
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert connect().execute("select 1").fetchone() == (1,)


def test_cut_is_a_reset_and_not_an_end_of_file(proxy):
    with socket.create_connection(("127.0.0.1", proxy.port)) as plain:
        while proxy.connections == 0:
            time.sleep(0.01)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            plain.recv(1)


def test_cut_ends_a_statement_that_waits(proxy, connect):
    connection = connect()
    threading.Timer(0.2, proxy.cut).start()
    started = time.monotonic()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select pg_sleep(10)")
    assert time.monotonic() - started < 5


def test_refuse_turns_new_ones_away_only(proxy, connect):
    connection = connect()
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        connect()
    assert connection.execute("select 1").fetchone() == (1,)
    proxy.restore()
    assert connect().execute("select 1").fetchone() == (1,)


def test_blackhole_hangs_and_delivers_late(proxy, connect, server):
    connection = connect(autocommit=True)
    proxy.blackhole()
    sent = threading.Thread(target=connection.execute, args=["insert into t values (1)"])
    sent.start()
    with pytest.raises(psycopg.errors.ConnectionTimeout):
        connect(connect_timeout=2)
    sent.join(0.3)
    assert sent.is_alive()
    assert rows(server, 1) == 0
    proxy.restore()
    sent.join(5)
    assert not sent.is_alive()
    assert rows(server, 1) == 1


def test_blackhole_of_answers_only(proxy, connect, server):
    connection = connect(autocommit=True)
    proxy.blackhole(to_server=False)
    sent = threading.Thread(target=connection.execute, args=["insert into t values (2)"])
    sent.start()
    sent.join(0.5)
    assert sent.is_alive()
    assert rows(server, 2) == 1
    proxy.restore()
    sent.join(5)
    assert not sent.is_alive()


def test_delay(proxy, connect):
    connection = connect(autocommit=True)
    proxy.delay(0.5)
    started = time.monotonic()
    connection.execute("select 1")
    assert time.monotonic() - started >= 1
    proxy.restore()
    started = time.monotonic()
    connection.execute("select 1")
    assert time.monotonic() - started < 1


def test_cut_after_commit(proxy, connect, server):
    connection = connect()
    other = connect()
    proxy.cut_after_commit()
    connection.execute("insert into t values (3)")
    assert not proxy.fired.is_set()
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert proxy.fired.is_set()
    assert rows(server, 3) == 1
    other.execute("delete from t")
    other.commit()  # armed once, and only that connection was cut
    assert rows(server, 3) == 0


def test_cut_after_a_marker_in_autocommit(proxy, connect, server):
    connection = connect(autocommit=True)
    proxy.cut_after(b"/* here */")
    connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError):
        connection.execute("insert into t values (%s) /* here */", [4])
    assert proxy.fired.wait(1)
    assert rows(server, 4) == 1


def test_cut_after_waits_for_the_end_of_the_answer(proxy, connect, server):
    connection = connect(autocommit=True)
    proxy.cut_after(b"/* slow */")
    with pytest.raises(psycopg.OperationalError):
        connection.execute("insert into t select 5 from generate_series(1, 50000) returning n, pg_sleep(0) /* slow */")
    assert rows(server, 5) == 50000


def test_cut_before(proxy, connect, server):
    connection = connect()
    proxy.cut_before(b"COMMIT")
    connection.execute("insert into t values (6)")
    with pytest.raises(psycopg.OperationalError):
        connection.commit()
    assert proxy.fired.is_set()
    assert rows(server, 6) == 0


def test_a_marker_may_come_in_two_pieces(proxy, connect, server):
    connection = connect(autocommit=True)
    proxy.cut_after(b"MARK")
    big = "x" * 200_000
    with pytest.raises(psycopg.OperationalError):
        connection.execute(f"select '{big}', '{'MA' + 'RK'}'")
    assert proxy.fired.is_set()


def test_a_server_that_went_down_and_came_back(proxy, connect, server):
    connection = connect()
    server.crash()
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")
    with pytest.raises(psycopg.OperationalError):
        connect()
    server.start()
    assert connect().execute("select 1").fetchone() == (1,)
    server.kill()
    server.start()
    assert connect().execute("select 1").fetchone() == (1,)
