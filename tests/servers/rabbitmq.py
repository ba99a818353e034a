"""A real RabbitMQ from the system's package, one node on free loopback ports."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.servers.process import ServerProcess, free_port, unprivileged_user
from tests.servers.server import Server

# Debian's commands in sbin insist on the user rabbitmq; these do not.
_PROGRAMS = Path("/usr/lib/rabbitmq/bin")
_SETTINGS = """
listeners.tcp.default = 127.0.0.1:{port}
loopback_users = none
max_message_size = 1000000
log.console = true
log.console.level = warning
"""
_ADVANCED = """[{{rabbit, [{{channel_tick_interval, {tick}}}, {{consumer_timeout, {timeout}}}]}}].\n"""


class RabbitMQ(Server):
    """One node that keeps what it confirmed. Skips the test where RabbitMQ is missing."""

    title = "RabbitMQ"
    start_seconds = 60.0

    def __init__(self, *, ack_timeout_seconds: float = 1800) -> None:
        super().__init__()
        self._dist, self._epmd_port = free_port(), free_port()
        self._ack_timeout = ack_timeout_seconds
        self._epmd: ServerProcess | None = None

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def start(self, *, wait: bool = True) -> None:
        if not (_PROGRAMS / "rabbitmq-server").exists() or not shutil.which("epmd"):
            pytest.skip("RabbitMQ is not installed; on Debian: apt-get install rabbitmq-server")
        super().start(wait=wait)

    def close(self) -> None:
        super().close()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd = None

    def _prepare(self) -> None:
        milliseconds = round(self._ack_timeout * 1000)
        self._write("advanced.config", _ADVANCED.format(tick=min(60_000, milliseconds // 4), timeout=milliseconds))
        self._write("plugins", "[].\n")
        # Otherwise the node would start a port mapper that outlives it.
        command = [str(shutil.which("epmd")), "-port", str(self._epmd_port), "-address", "127.0.0.1"]
        self._epmd = ServerProcess(command, directory=self.directory, log=self.directory / "epmd.log")

    def _command(self) -> Sequence[str]:
        self._write("rabbitmq.conf", _SETTINGS.format(port=self.port))
        (self.directory / "log").unlink(missing_ok=True)
        return self._program("rabbitmq-server")

    def _is_ready(self) -> bool:
        return "completed with" in self.log

    def queues(self) -> dict[str, tuple[int, int]]:
        """The number of ready and of unacknowledged messages of each queue, from RabbitMQ's own tool."""
        columns = ("name", "messages_ready", "messages_unacknowledged")
        output = self._ctl("list_queues", *columns, "--quiet", "--no-table-headers")
        rows = [line.split("\t") for line in output.splitlines()]
        return {name: (int(ready), int(unacknowledged)) for name, ready, unacknowledged in rows}

    def _ctl(self, *args: str) -> str:
        user = unprivileged_user()
        done = subprocess.run(
            [*self._program("rabbitmqctl"), *args],
            cwd=self.directory,
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

    def _program(self, program: str) -> Sequence[str]:
        here = self.directory
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
            "ERL_EPMD_PORT": self._epmd_port,
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            # The script then becomes the node, so that signals reach it.
            "RUNNING_UNDER_SYSTEMD": "true",
            "PATH": os.environ.get("PATH", os.defpath),
        }
        return ["/usr/bin/env", *(f"{name}={value}" for name, value in settings.items()), str(_PROGRAMS / program)]
