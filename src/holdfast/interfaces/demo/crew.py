"""The worker processes: starts them, kills one, replaces what dies, and rolls out releases."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic

from holdfast.interfaces.demo.place import Place
from holdfast.ops.service import SyncOperations
from holdfast.stores.worker import Worker

_COMMAND = (sys.executable, "-m", "holdfast.interfaces.demo.worker")
# The children have an app and a store of their own, whatever else this shell is set up for.
_FOREIGN = ("HOLDFAST_APP", "HOLDFAST_DSN", "HOLDFAST_GENERATION")
_MOST_FAILURES = 3
_PATIENCE_SECONDS = 6.0


class CrewFailed(Exception):
    """Worker processes keep dying by themselves; the message ends with what they last said."""


class Crew:
    """A number of worker processes, kept alive. `crashes` counts those that were killed."""

    def __init__(self, place: Place, ops: SyncOperations, size: int, log: Path) -> None:
        self._place, self._ops, self._size, self._log = place, ops, size, log
        self._children: list[subprocess.Popen[bytes]] = []
        self._outgoing: list[subprocess.Popen[bytes]] = []
        self._leaving: list[subprocess.Popen[bytes]] = []
        self._failures = 0
        self.crashes = 0
        self.release = place.release

    @property
    def pids(self) -> list[int]:
        """The processes of the present release."""
        return [child.pid for child in self._children]

    def mend(self) -> None:
        """Starts a process for each one missing, and buries the dead. Call it often."""
        self._leaving = [child for child in self._leaving if child.poll() is None]
        for child in [child for child in self._children if child.poll() is not None]:
            self._children.remove(child)
            self._failures += 1
            if self._failures > _MOST_FAILURES:
                raise CrewFailed(f"worker processes keep dying (exit code {child.returncode})\n{self._last_words()}")
        while len(self._children) < self._size:
            self._children.append(self._start())

    def alive(self) -> list[Worker]:
        """The workers that are on duty, those of an old release too."""
        here = {child.pid for child in (*self._children, *self._outgoing, *self._leaving)}
        return [worker for worker in self._ops.workers() if worker.alive and pid_of(worker) in here]

    def kill(self, pid: int) -> None:
        """Ends a process in the middle of whatever it does: no signal handler, no goodbye."""
        (child,) = [child for child in self._children if child.pid == pid]
        _kill_group(child)
        self._children.remove(child)
        self.crashes += 1

    def deploy(self, release: int) -> None:
        """Starts a crew of another release beside the present one; `retire` sends the old one home."""
        self.release, self._place = release, replace(self._place, release=release)
        self._outgoing += self._children
        self._children = [self._start() for _ in range(self._size)]

    def retire(self) -> None:
        """Asks those of the old release to finish what they have begun, and go."""
        for child in self._outgoing:
            child.terminate()
        self._leaving += self._outgoing
        self._outgoing = []

    @property
    def settled(self) -> bool:
        """Whether nobody of an old release is left."""
        return not self._outgoing and not self._leaving

    def close(self, patience: float = _PATIENCE_SECONDS) -> None:
        """Sends everybody home; returns when no process is left, by force if need be."""
        self._outgoing += self._children
        self._children = []
        self.retire()
        deadline = monotonic() + patience
        for child in self._leaving:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - monotonic()))
            _kill_group(child)
        self._leaving = []

    def _start(self) -> subprocess.Popen[bytes]:
        own = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
        with self._log.open("ab") as log:
            return subprocess.Popen(  # noqa: S603
                _COMMAND,
                env=own | self._place.to_environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the demo, which then asks them to go
            )

    def _last_words(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])


def pid_of(worker: Worker) -> int:
    """A worker instance is named after its host, its process and chance."""
    return int(worker.id.split("/")[1])


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """The whole group: a worker may have a child of its own, for suspects."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
