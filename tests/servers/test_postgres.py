import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.servers.postgres import PostgresServer, binaries
from tests.servers.process import has_ended

pytestmark = pytest.mark.long


@pytest.fixture(params=[16, 18])
def server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    with PostgresServer(request.param) as server:
        yield server


def test_each_fixture_serves_its_version(postgres16: PostgresServer, postgres18: PostgresServer) -> None:
    assert postgres16.execute("show server_version")[0][0].startswith("16.")
    assert postgres18.execute("show server_version")[0][0].startswith("18.")


def test_the_server_has_the_settings_that_tests_rely_on(postgres18: PostgresServer) -> None:
    assert postgres18.execute("show max_connections") == [("300",)]
    assert postgres18.execute("show fsync") == [("off",)]
    assert postgres18.execute("show synchronous_commit") == [("on",)]
    assert postgres18.execute("show timezone") == [("UTC",)]


def test_a_durable_server_keeps_fsync_and_settings_can_be_given() -> None:
    with PostgresServer(18, durable=True, settings={"max_connections": 7}) as server:
        assert server.execute("show fsync") == [("on",)]
        assert server.execute("show full_page_writes") == [("on",)]
        assert server.execute("show max_connections") == [("7",)]


def test_committed_rows_survive_kill_and_restart(server: PostgresServer) -> None:
    server.execute("create table kept (n int)")
    server.execute("insert into kept select generate_series(1, 1000)")
    with psycopg.connect(server.dsn()) as open_transaction:
        open_transaction.execute("insert into kept values (-1)")
        dsn, first = server.dsn(), server.pid
        postmaster = psutil.Process(first)
        family = [postmaster, *postmaster.children(recursive=True)]
        server.kill()
        assert len(family) > 5
        assert all(has_ended(process) for process in family)
        with pytest.raises(psycopg.OperationalError):
            open_transaction.execute("select 1")
    server.restart()
    assert server.dsn() == dsn
    assert server.pid != first
    assert server.execute("select count(*), min(n) from kept") == [(1000, 1)]


def test_committed_rows_survive_stop_and_start(server: PostgresServer) -> None:
    server.execute("create table kept (n int)")
    server.execute("insert into kept values (%s)", [42])
    server.stop()
    assert not server.running
    with pytest.raises(psycopg.OperationalError):
        server.execute("select 1")
    server.start()
    assert server.execute("select n from kept") == [(42,)]


def test_a_database_is_made_from_a_template_and_dropped_while_in_use(postgres18: PostgresServer) -> None:
    postgres18.create_database("pattern")
    postgres18.execute("create table here (n int)", database="pattern")
    dsn = postgres18.create_database('a "copy"', template="pattern")
    with psycopg.connect(dsn, autocommit=True) as connection:
        assert connection.execute("select count(*) from here").fetchone() == (0,)
        postgres18.drop_database('a "copy"')
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    postgres18.drop_database("pattern")
    postgres18.drop_database("never there")


def test_two_servers_run_side_by_side(postgres18: PostgresServer) -> None:
    with PostgresServer(18) as other:
        assert other.port != postgres18.port
        assert other.execute("select 1") == postgres18.execute("select 1")


def test_close_leaves_neither_process_nor_file() -> None:
    server = PostgresServer(18)
    server.start()
    directory, pid = server._data.parent, server.pid
    assert directory.exists()
    server.close()
    assert not directory.exists()
    assert not psutil.pid_exists(pid)


def test_a_killed_test_run_leaves_neither_process_nor_file() -> None:
    program = (
        "import os, signal\n"
        "from tests.servers.postgres import PostgresServer\n"
        "server = PostgresServer(18)\n"
        "server.start()\n"
        "print(server.pid, server._data.parent, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert run.returncode == -signal.SIGKILL, run.stderr
    pid, directory = run.stdout.split(maxsplit=1)
    deadline = time.monotonic() + 15
    while psutil.pid_exists(int(pid)) or Path(directory.strip()).exists():
        assert time.monotonic() < deadline, "the keeper did not clean up"
        time.sleep(0.05)


def test_an_unknown_version_is_refused() -> None:
    with pytest.raises(ValueError, match="there are \\[16, 18\\]"):
        binaries(12)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs servers as another user")
def test_binaries_that_cannot_be_reached_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers.postgres.reachable", lambda path: False)
    binaries.cache_clear()
    try:
        assert binaries(18).is_relative_to(tempfile.gettempdir())
        with PostgresServer(18) as server:
            assert server.execute("select 1") == [(1,)]
    finally:
        binaries.cache_clear()
