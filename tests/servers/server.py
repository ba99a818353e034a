"""The base of all test servers: one process with its own directory and port, on loopback only."""

import atexit
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

import psutil

from tests.servers.process import ServerProcess, free_port, server_directory

_PORTS_TO_TRY = 5


class Server(ABC):
    """A server that keeps its directory and its port over `stop`, `kill` and `start`.

    `close()` ends it and removes everything; it is called at exit, and the keeper does it if the test process is killed.
    """

    title: ClassVar[str]
    start_seconds: ClassVar[float] = 30.0
    stop_seconds: ClassVar[float] = 30.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self.port = free_port()
        self._directory: Path | None = None
        self._process: ServerProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def _prepare(self) -> None:
        """Creates the files that the server needs, in a new directory."""

    @abstractmethod
    def _command(self) -> Sequence[str | Path]:
        """The command that runs the server on `port`; called before each start."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether clients are served."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        return self._started().pid

    @property
    def log(self) -> str:
        """Everything the server has logged."""
        return "" if self._directory is None else (self._directory / "log").read_text(errors="replace")

    @property
    def directory(self) -> Path:
        assert self._directory is not None, f"{self.title} was never started"
        return self._directory

    def start(self, *, wait: bool = True) -> None:
        """Returns when clients are served, or at once without `wait`."""
        if self.running:
            return
        first = self._directory is None
        if first:
            self._directory = server_directory(self.title.lower().replace(" ", ""))
            atexit.register(self.close)
            self._prepare()
        for attempt in range(1, _PORTS_TO_TRY + 1):
            try:
                self._process = ServerProcess(self._command(), directory=self.directory, log=self.directory / "log")
                if wait:
                    self.wait_until_ready()
            except RuntimeError:
                # Another process may have taken the port first. A restart must come back on the same port.
                if not first or attempt == _PORTS_TO_TRY:
                    raise
                self.port = free_port()
            else:
                return

    def wait_until_ready(self) -> None:
        process, deadline = self._started(), time.monotonic() + self.start_seconds
        while not self._is_ready():
            if not process.alive or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.title} did not start on port {self.port}:\n{self.log}")
            time.sleep(0.01)

    def stop(self) -> None:
        """Shuts the server down in an orderly way."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """Kills the server and all its children with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        """Suspends the server: connections stay open, no request is answered."""
        process = self._started()
        process.signal(signal.SIGSTOP)
        while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)

    def resume(self) -> None:
        self._started().signal(signal.SIGCONT)

    def close(self) -> None:
        """Ends the server and removes its data. A closed server can be started again, empty."""
        self.kill()
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            atexit.unregister(self.close)
            self._directory = None

    def _started(self) -> ServerProcess:
        if self._process is None:
            raise RuntimeError(f"{self.title} is not running; call start()")
        return self._process

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.signal(number)
            self._process.wait(self.stop_seconds)
            self._process = None

    def _copy_program(self, program: str | Path, name: str) -> None:
        """Copies a program into the directory, because the server's user may not reach the environment."""
        shutil.copy(program, self.directory / name)
        (self.directory / name).chmod(0o755)

    def _write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        path.chmod(0o644)
        return path
