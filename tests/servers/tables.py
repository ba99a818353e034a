"""Holdfast's tables on a test server: made once, emptied after each test.

A copy of a template for each test would take 100 to 250 ms, emptying takes two.
"""

import time

import psycopg

from holdfast.stores.postgres.store import PostgresStore
from tests.servers import sessions
from tests.servers.postgres import PostgresServer

_SMALL = 4_000_000
_OTHERS = (
    "from pg_stat_activity "
    "where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid() "
    f"and application_name <> '{sessions.NAME}'"
)
_TABLES = (
    "select oid::regclass::text, pg_relation_size(oid) from pg_class "
    "where relnamespace = 'holdfast'::regnamespace and relkind = 'r' and relname <> 'schema_version'"
)

_sessions: dict[str, psycopg.Connection] = {}


def migrated(server: PostgresServer, name: str) -> str:
    """Creates a database with Holdfast's tables and returns its DSN."""
    store = PostgresStore(server.create_database(name))
    store.migrate()
    store.close_sync()
    return server.dsn(name)


def empty(dsn: str) -> None:
    """Ends every other session of the database and deletes what Holdfast's tables hold."""
    try:
        _empty(_session(dsn))
    except psycopg.OperationalError:  # a test restarted the server or ended the session
        _empty(_session(dsn))


def _session(dsn: str) -> psycopg.Connection:
    """A connection that is kept: a new session spends more time on reading the catalog than on the work."""
    if dsn not in _sessions or _sessions[dsn].closed:
        _sessions[dsn] = connection = psycopg.connect(dsn, autocommit=True)
        connection.execute("set session_replication_role = replica")  # in any order, despite foreign keys
    return _sessions[dsn]


def _empty(connection: psycopg.Connection) -> None:
    _end_others(connection)
    tables = connection.execute(_TABLES).fetchall()
    if sum(size for _, size in tables) > _SMALL:
        connection.execute(f"truncate {', '.join(table for table, _ in tables)}".encode())
        return
    with connection.pipeline():
        for table, size in tables:
            if size:
                connection.execute(f"delete from {table}".encode())


def _end_others(connection: psycopg.Connection) -> None:
    """With a timeout `pg_terminate_backend` would look only every 100 ms whether the session has ended."""
    deadline = time.monotonic() + 5
    while connection.execute(f"select pg_terminate_backend(pid) {_OTHERS}".encode()).fetchall():
        assert time.monotonic() < deadline, "a session did not end"
        time.sleep(0.001)
