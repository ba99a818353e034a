"""A real RabbitMQ from the system's package, one node on free loopback ports."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

from tests.servers.process import ServerProcess, free_port, server_directory, unprivileged_user

# Debian's commands in sbin insist on the user rabbitmq; these do not.
_PROGRAMS = Path("/usr/lib/rabbitmq/bin")
_START_SECONDS = 60.0
_STOP_SECONDS = 30.0
_SETTINGS = """
listeners.tcp.default = 127.0.0.1:{port}
loopback_users = none
max_message_size = 1000000
log.console = true
log.console.level = warning
"""
_ADVANCED = """[{{rabbit, [{{channel_tick_interval, {tick}}}, {{consumer_timeout, {patience}}}]}}].\n"""


class RabbitMQ:
    """One node. `kill`, `stop` and `start` keep its port and what was confirmed. Skips the test where it is missing."""

    def __init__(self, *, patience_seconds: float = 1800) -> None:
        self.port, self._dist, self._names = free_port(), free_port(), free_port()
        self._patience = patience_seconds
        self._directory: Path | None = None
        self._node: ServerProcess | None = None
        self._epmd: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        if self._epmd is not None:
            self._epmd.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def start(self) -> None:
        """Returns when clients are served."""
        if not (_PROGRAMS / "rabbitmq-server").exists() or not (epmd := shutil.which("epmd")):
            pytest.skip("RabbitMQ is not installed; on Debian: apt-get install rabbitmq-server")
        if self._directory is None:
            self._directory = server_directory("rabbitmq")
            self._write("rabbitmq.conf", _SETTINGS.format(port=self.port))
            tick = min(60_000, round(self._patience * 250))
            self._write("advanced.config", _ADVANCED.format(tick=tick, patience=round(self._patience * 1000)))
            self._write("plugins", "[].\n")
        if self._epmd is None:
            # Else the node would start one that outlives it.
            command = [epmd, "-port", str(self._names), "-address", "127.0.0.1"]
            self._epmd = ServerProcess(command, directory=self._directory, log=self._directory / "epmd.log")
        log = self._directory / "log"
        log.unlink(missing_ok=True)
        self._node = ServerProcess(self._command("rabbitmq-server"), directory=self._directory, log=log)
        deadline = time.monotonic() + _START_SECONDS
        while "completed with" not in log.read_text(errors="replace"):
            if time.monotonic() > deadline or not self._node.alive:
                raise RuntimeError(f"RabbitMQ did not start:\n{log.read_text(errors='replace')}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Ends the node in good order."""
        if self._node is not None:
            self._node.signal(signal.SIGTERM)
            self._node.wait(_STOP_SECONDS)
            self._node = None

    def kill(self) -> None:
        """SIGKILL."""
        if self._node is not None:
            self._node.kill()
            self._node = None

    def pause(self) -> None:
        """Stops the node in its tracks: connections stay open, nobody answers."""
        assert self._node is not None
        self._node.signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._node is not None
        self._node.signal(signal.SIGCONT)

    def queues(self) -> dict[str, tuple[int, int]]:
        """Of each queue what is ready and what is handed over, from RabbitMQ's own tool."""
        told = self._ctl(
            "list_queues", "name", "messages_ready", "messages_unacknowledged", "--quiet", "--no-table-headers"
        )
        rows = [line.split("\t") for line in told.splitlines()]
        return {name: (int(ready), int(unacknowledged)) for name, ready, unacknowledged in rows}

    def _ctl(self, *args: str) -> str:
        assert self._directory is not None
        user = unprivileged_user()
        done = subprocess.run(
            [*self._command("rabbitmqctl"), *args],
            cwd=self._directory,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {args[0]} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def _command(self, program: str) -> Sequence[str]:
        here = self._directory
        # One thread for Erlang, which does not spin; nothing listens beyond loopback.
        erlang = "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
        settings = {
            "HOME": here,
            "RABBITMQ_NODENAME": f"holdfast-{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": self.port,
            "RABBITMQ_DIST_PORT": self._dist,
            "RABBITMQ_MNESIA_BASE": f"{here}/data",
            "RABBITMQ_LOG_BASE": f"{here}/logs",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": f"{here}/rabbitmq",
            "RABBITMQ_ADVANCED_CONFIG_FILE": f"{here}/advanced.config",
            "RABBITMQ_CONF_ENV_FILE": f"{here}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{here}/plugins",
            "RABBITMQ_PID_FILE": f"{here}/pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": erlang,
            "ERL_EPMD_PORT": self._names,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # The script then becomes the node, so that signals reach it.
            "RUNNING_UNDER_SYSTEMD": "true",
            "PATH": os.environ.get("PATH", os.defpath),
        }
        return ["/usr/bin/env", *(f"{name}={value}" for name, value in settings.items()), str(_PROGRAMS / program)]

    def _write(self, name: str, text: str) -> None:
        assert self._directory is not None
        (self._directory / name).write_text(text)
        (self._directory / name).chmod(0o644)
