"""PgBouncer in transaction mode before a PostgresServer, when the system has it installed."""

import atexit
import os
import shutil
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import pytest

from tests.servers.postgres import PostgresServer
from tests.servers.process import ServerProcess, free_port, server_directory

_START_SECONDS = 10.0


class PgBouncer:
    """A pooler for every database of one server. Skips the test when PgBouncer is not installed."""

    def __init__(
        self,
        server: PostgresServer,
        *,
        pool_mode: str = "transaction",
        settings: Mapping[str, str | int] | None = None,
    ) -> None:
        self.server = server
        self.port = 0
        self._pool_mode = pool_mode
        self._settings = settings or {}
        self._directory: Path | None = None
        self._process: ServerProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def log(self) -> str:
        return "" if self._directory is None else (self._directory / "log").read_text(errors="replace")

    def start(self) -> None:
        """Returns when the pooler accepts connections."""
        if self.running:
            return
        # A user's PATH often leaves out sbin, where Debian puts it.
        program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin")
        if program is None:
            pytest.skip("PgBouncer is not installed; on Debian: apt-get install pgbouncer")
        if self._directory is None:
            self._directory = server_directory("pgbouncer")
            atexit.register(self.close)
        if self.port:
            self._launch(program, self.port)
            return
        for attempt in range(5):
            port = free_port()
            try:
                self._launch(program, port)
            except RuntimeError:  # another process took the port first
                if attempt == 4:
                    raise
            else:
                self.port = port
                return

    def stop(self) -> None:
        """Ends the pooler at once, cutting its clients; the port stays its own."""
        if self._process is not None:
            # Not SIGQUIT: a shell that runs the tests in the background makes everything below it ignore that.
            self._process.kill()
            self._process = None

    def close(self) -> None:
        """Ends the pooler and removes its files."""
        self.stop()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            atexit.unregister(self.close)
            self._directory = None
            self.port = 0

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def _launch(self, program: str, port: int) -> None:
        assert self._directory is not None
        configuration = self._directory / "pgbouncer.ini"
        configuration.write_text(self._configuration(port))
        self._process = ServerProcess([program, configuration], directory=self._directory, log=self._directory / "log")
        deadline = time.monotonic() + _START_SECONDS
        while not _listens(port):
            if not self._process.alive or time.monotonic() > deadline:
                self._process.kill()
                self._process = None
                raise RuntimeError(f"PgBouncer did not start on port {port}:\n{self.log}")
            time.sleep(0.01)

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


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
