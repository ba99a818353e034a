"""Starts, kills and replaces the demo's worker processes, and deploys new releases."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic

from holdfast.interfaces.demo.config import DemoConfig
from holdfast.ops.service import SyncOperations
from holdfast.stores.deliveries.worker import WorkerRecord

_COMMAND = (sys.executable, "-m", "holdfast.interfaces.demo.worker")
# Settings of the shell that must not reach the demo's workers.
_EXCLUDED_VARIABLES = ("HOLDFAST_APP", "HOLDFAST_DSN", "HOLDFAST_GENERATION")
_MAX_FAILURES = 3
_STOP_TIMEOUT_SECONDS = 6.0


class WorkersFailed(Exception):
    """Worker processes keep exiting on their own; the message ends with their last log lines."""


class WorkerProcesses:
    """A fixed number of worker processes that are restarted when they exit. `crashes` counts those that were killed."""

    def __init__(self, config: DemoConfig, ops: SyncOperations, size: int, log: Path) -> None:
        self._config, self._ops, self._size, self._log = config, ops, size, log
        self._children: list[subprocess.Popen[bytes]] = []
        self._outgoing: list[subprocess.Popen[bytes]] = []
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._failures = 0
        self.crashes = 0
        self.release = config.release

    @property
    def pids(self) -> list[int]:
        """Process ids of the current release."""
        return [child.pid for child in self._children]

    def restart_missing(self) -> None:
        """Replaces processes that have exited. Call it often."""
        self._leaving = [child for child in self._leaving if child.poll() is None]
        for child in [child for child in self._children if child.poll() is not None]:
            self._children.remove(child)
            self._failures += 1
            if self._failures > _MAX_FAILURES:
                raise WorkersFailed(f"worker processes keep exiting (exit code {child.returncode})\n{self._log_tail()}")
        while len(self._children) < self._size:
            self._children.append(self._start())

    def alive(self) -> list[WorkerRecord]:
        """Workers that are alive, including those of an old release."""
        here = {child.pid for child in (*self._children, *self._outgoing, *self._leaving)}
        return [worker for worker in self._ops.workers() if worker.alive and pid_of(worker) in here]

    def kill(self, pid: int) -> None:
        """Kills a process with SIGKILL."""
        (child,) = [child for child in self._children if child.pid == pid]
        _kill_group(child)
        self._children.remove(child)
        self.crashes += 1

    def deploy(self, release: int) -> None:
        """Starts workers of a new release next to the current ones; `retire` stops the old ones."""
        self.release, self._config = release, replace(self._config, release=release)
        self._outgoing += self._children
        self._children = [self._start() for _ in range(self._size)]

    def retire(self) -> None:
        """Sends SIGTERM to the workers of the old release."""
        for child in self._outgoing:
            child.terminate()
        self._leaving += self._outgoing
        self._outgoing = []

    @property
    def settled(self) -> bool:
        """Whether all workers of old releases have exited."""
        return not self._outgoing and not self._leaving

    def close(self, timeout: float = _STOP_TIMEOUT_SECONDS) -> None:
        """Stops all processes; kills those that have not exited after `timeout` seconds."""
        self._outgoing += self._children
        self._children = []
        self.retire()
        deadline = monotonic() + timeout
        for child in self._leaving:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - monotonic()))
            _kill_group(child)
        self._leaving = []

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {name: value for name, value in os.environ.items() if name not in _EXCLUDED_VARIABLES}
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603
                _COMMAND,
                env=environment | self._config.to_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C must reach only the demo, which then stops the workers
            )

    def _log_tail(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


def pid_of(worker: WorkerRecord) -> int:
    """The process id in a worker id, which is `host/pid/random`."""
    return int(worker.id.split("/")[1])


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kills the process group: a worker can have a child process for suspect deliveries."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
