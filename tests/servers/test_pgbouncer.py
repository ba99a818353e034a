from collections.abc import Iterator

import psycopg
import pytest

from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer


@pytest.fixture
def pooler(postgres18: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer(postgres18, settings={"default_pool_size": 2}) as pooler:
        yield pooler


def test_clients_share_a_few_server_sessions(pooler: PgBouncer) -> None:
    clients = [psycopg.connect(pooler.dsn(), autocommit=True, prepare_threshold=None) for _ in range(10)]
    try:
        sessions = {client.execute("select pg_backend_pid()").fetchone() for client in clients}
    finally:
        for client in clients:
            client.close()
    assert len(sessions) <= 2


def test_a_client_changes_its_server_session_between_transactions(pooler: PgBouncer) -> None:
    with (
        psycopg.connect(pooler.dsn(), prepare_threshold=None) as first,
        psycopg.connect(pooler.dsn(), prepare_threshold=None) as second,
    ):
        before = first.execute("select pg_backend_pid()").fetchone()
        first.commit()
        assert second.execute("select pg_backend_pid()").fetchone() == before
        assert first.execute("select pg_backend_pid()").fetchone() != before


def test_a_new_database_is_reached_without_configuring_the_pooler(
    pooler: PgBouncer, postgres18: PostgresServer
) -> None:
    postgres18.create_database("behind_the_pooler")
    with psycopg.connect(pooler.dsn("behind_the_pooler"), prepare_threshold=None) as client:
        assert client.execute("select current_database()").fetchone() == ("behind_the_pooler",)


def test_the_pooler_comes_back_on_its_port(pooler: PgBouncer) -> None:
    dsn = pooler.dsn()
    pooler.stop()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(dsn)
    pooler.start()
    with psycopg.connect(dsn, prepare_threshold=None) as client:
        assert client.execute("select 1").fetchone() == (1,)


def test_the_test_is_skipped_where_pgbouncer_is_missing(
    postgres18: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda *_args, **_options: None)
    with pytest.raises(pytest.skip.Exception, match="apt-get install pgbouncer"):
        PgBouncer(postgres18).start()
