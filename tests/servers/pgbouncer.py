"""PgBouncer in transaction mode before a PostgresServer, when the system has it installed."""

import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.server import Server


class PgBouncer(Server):
    """A pooler for every database of one server. Skips the test when PgBouncer is not installed."""

    title = "PgBouncer"
    start_seconds = 10.0

    def __init__(
        self,
        server: PostgresServer,
        *,
        pool_mode: str = "transaction",
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        super().__init__()
        self.server = server
        self._pool_mode = pool_mode
        self._settings = settings or {}

    def start(self, *, wait: bool = True) -> None:
        if _program() is None:
            pytest.skip("PgBouncer is not installed; on Debian: apt-get install pgbouncer")
        super().start(wait=wait)

    def stop(self) -> None:
        """Kills the pooler: an orderly shutdown would wait for its clients."""
        self.kill()

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def _prepare(self) -> None:
        """Its settings name the port and are written before each start."""

    def _command(self) -> Sequence[str | Path]:
        return [str(_program()), self._write("pgbouncer.ini", self._configuration(self.port))]

    def _is_ready(self) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _configuration(self, port: int) -> str:
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": self._pool_mode,
            "default_pool_size": 20,
            "max_client_conn": 300,
            # Drivers send these at connect; the pooler cannot keep them per client.
            "ignore_startup_parameters": "extra_float_digits,options",
            **self._settings,
        }
        lines = [
            "[databases]",
            f"* = host=127.0.0.1 port={self.server.port} user=postgres",
            "[pgbouncer]",
            *(f"{name} = {value}" for name, value in settings.items()),
        ]
        return "\n".join(lines) + "\n"


def _program() -> str | None:
    # A user's PATH often leaves out sbin, where Debian puts it.
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
