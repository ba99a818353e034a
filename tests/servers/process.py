"""A server process under its keeper, and what servers that refuse to run as root need."""

import os
import pwd
import secrets
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

_KEEPER = Path(__file__).with_name("keeper.py")
_KILL_SECONDS = 10.0


class ServerProcess:
    """One running server. Only this process and its own children are ever signalled, by their id."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        directory: Path,
        log: Path,
        owner: int | None = None,
        same_user: bool = False,
    ) -> None:
        """Starts it. It ends with the process `owner`, which is this one if none is given.

        With `same_user` it runs as the user of the tests, also if that is root.
        """
        user = None if same_user else unprivileged_user()
        with log.open("ab") as output:
            self._keeper = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", _KEEPER, str(owner or os.getpid())),
                    "-" if user is None else f"{user.pw_uid}:{user.pw_gid}",
                    directory,
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for pytest; the server ends after the tests' own clean-up
            )
        assert self._keeper.stdout is not None
        with self._keeper.stdout as first_line:
            self.pid = int(first_line.readline() or 0)
        if not self.pid:
            self._keeper.wait()
            raise RuntimeError(f"{command[0]} did not start:\n{log.read_text(errors='replace')}")

    def detach(self) -> None:
        """Leaves the server to its owner: it keeps running when this process ends."""
        self._keeper.returncode = 0  # else its destructor warns that it still runs

    @property
    def alive(self) -> bool:
        return self._keeper.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Signals the server itself, not its children."""
        if self.alive:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> None:
        """Waits for the end; kills the server and raises if it does not come."""
        try:
            self._keeper.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """SIGKILL for the server and all of its children; returns when none of them is left."""
        children: list[psutil.Process] = []
        if self.alive:
            server = psutil.Process(self.pid)
            server.suspend()  # no new child between listing and killing
            children = server.children(recursive=True)
            server.kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        self._keeper.wait()
        deadline = time.monotonic() + _KILL_SECONDS
        while left := [child for child in children if not has_ended(child)]:
            if time.monotonic() > deadline:
                raise RuntimeError(f"these processes survived SIGKILL: {left}")
            time.sleep(0.005)


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone or a zombie, which holds nothing; init may take a second to collect its orphans."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@cache
def unprivileged_user() -> pwd.struct_passwd | None:
    """Whom servers run as when the tests run as root, which they refuse; None when the tests do not."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def server_directory(prefix: str) -> Path:
    """A new directory that the server's user owns, in a place that user can reach."""
    user = unprivileged_user()
    places = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]  # noqa: S108
    place = next((place for place in places if user is None or reachable(place)), None)
    if place is None:
        raise RuntimeError("no temporary directory is open to an unprivileged user; set TMPDIR to one that is")
    directory = Path(tempfile.mkdtemp(prefix=f"holdfast-{prefix}-", dir=place)).resolve()
    if user is not None:
        os.chown(directory, user.pw_uid, user.pw_gid)
    return directory


def reachable(path: Path) -> bool:
    """Whether everybody may enter this directory and those above it."""
    path = path.resolve()
    return all(directory.stat().st_mode & stat.S_IXOTH for directory in (path, *path.parents))


def free_port() -> int:
    """A free loopback port below the range that outgoing connections use.

    So no process gets the port by chance while its server is down, and a killed server comes back on it.
    """
    for _ in range(1000):
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 10000 and 30000")
