"""The databases of the lab: a SQLite file, PostgreSQL behind a proxy, and a primary with a synchronous standby."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chaos.application import TABLES
from chaos.disk import SmallDisk
from holdfast.runtime.store_factory import open_store
from tests.engine.programs.place import Place
from tests.engine.programs.proxy import Proxy
from tests.servers.postgres import PostgresServer
from tests.servers.process import unprivileged_user
from tests.servers.standby import StandbyServer

STORES = ("sqlite", "postgres", "cluster")
VERSION = 18
_DATABASE = "chaos"
# Small segments, so that a full disk is noticed soon. Each thread of a handler keeps a connection, about 50 in a worker.
_SETTINGS: dict[str, str | int] = {"max_connections": 250, "min_wal_size": "32MB", "max_wal_size": "64MB"}


class SmallDiskServer(PostgresServer):
    """A server whose data is on a small disk."""

    disk: SmallDisk

    def _prepare(self) -> None:
        self.disk = SmallDisk(self._data, 384, unprivileged_user())
        super()._prepare()

    def close(self) -> None:
        self.kill()
        if self._directory is not None:
            self.disk.close()
        super().close()


class StoreUnderTest(Place):
    """A database, and the parts of it that faults strike. `dsn` is the lab's own way to it, past the proxy."""

    def __init__(self, name: str, dsn: str, directory: Path, server: PostgresServer | None = None) -> None:
        super().__init__(dsn, directory, server)
        self.name = name
        self.client_dsn = dsn
        self.proxy: Proxy | None = None
        self.standby: StandbyServer | None = None
        self.disk: SmallDisk | None = None

    @property
    def _path(self) -> Path:
        return Path(self.dsn.removeprefix("sqlite:///"))

    def terminate_backends(self, role: str | None = None) -> int:
        """Ends all sessions but the lab's own. It keeps one for this: the server may have no connection left."""
        ended = "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = ? and application_name <> 'test'"
        return int(self.one(ended, _DATABASE))

    def connect_file(self) -> sqlite3.Connection:
        """Another program's connection to the file of SQLite."""
        return sqlite3.connect(self._path, isolation_level=None, timeout=30)

    def create_tables(self) -> None:
        store = open_store(self.dsn)
        store.migrate()
        store.close_sync()
        for statement in TABLES:
            self.sql(statement)


@contextmanager
def opened(name: str, directory: Path) -> Iterator[StoreUnderTest]:
    """One of `STORES`, with its tables."""
    with ExitStack() as stack:
        make = {"sqlite": _sqlite, "postgres": _postgres, "cluster": _cluster}[name]
        store = make(directory, stack)
        stack.callback(store.close)
        store.create_tables()
        yield store


def _sqlite(directory: Path, stack: ExitStack) -> StoreUnderTest:
    disk = SmallDisk(directory / "disk", 64)
    stack.callback(disk.close)
    store = StoreUnderTest("sqlite", f"sqlite:///{disk.directory / 'holdfast.db'}", directory)
    store.disk = disk
    return store


def _postgres(directory: Path, stack: ExitStack) -> StoreUnderTest:
    server = stack.enter_context(SmallDiskServer(VERSION, durable=True, settings=_SETTINGS))
    proxy = stack.enter_context(Proxy(server))
    store = StoreUnderTest("postgres", server.create_database(_DATABASE), directory, server)
    store.proxy, store.disk, store.client_dsn = proxy, server.disk, proxy.dsn(store.dsn)
    return store


def _cluster(directory: Path, stack: ExitStack) -> StoreUnderTest:
    """Every commit waits for the standby, so that a failover loses nothing that was acknowledged."""
    primary = stack.enter_context(PostgresServer(VERSION, durable=True, settings=_SETTINGS))
    primary.create_database(_DATABASE)
    standby = stack.enter_context(StandbyServer(primary))
    primary.execute("alter system set synchronous_standby_names = 'standby'")
    primary.execute("select pg_reload_conf()")
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    dsn = f"postgresql://postgres@{hosts}/{_DATABASE}?target_session_attrs=read-write"
    store = StoreUnderTest("cluster", dsn, directory, primary)
    store.standby = standby
    return store
