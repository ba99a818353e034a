"""The holder of SQLite's write lock, and how long this store has waited for it."""

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from holdfast.core.errors import StoreLocked

# SQLite's write lock is a byte of the -shm file in WAL mode, otherwise a byte of the database file.
_WAL_WRITE_BYTE = 120
_RESERVED_BYTE = 0x40000001
_PROC_LOCKS = Path("/proc/locks")


class WriteLockWait:
    """How long this store has failed to get the write lock."""

    def __init__(self, path: Path, store: str) -> None:
        self._path, self._store = path, store
        self._since: datetime | None = None

    def acquired(self) -> None:
        self._since = None

    def refused(self, after: timedelta) -> StoreLocked:
        """The error for a write lock that was not available for this long."""
        now = datetime.now(UTC)
        self._since = self._since or now - after
        return StoreLocked(self._store, self._since, now - self._since, _holder(writer(self._path)))


def _holder(pid: int | None) -> str:
    if pid is None:
        return ""
    return "this process" if pid == os.getpid() else f"process {pid}"


def writer(path: Path) -> int | None:
    """The process that holds the write lock of a database file; None if unknown, as on macOS."""
    lock_bytes: dict[int, int] = {}
    for name, byte in ((path.with_name(path.name + "-shm"), _WAL_WRITE_BYTE), (path, _RESERVED_BYTE)):
        try:
            lock_bytes[name.stat().st_ino] = byte
        except FileNotFoundError:
            continue
    try:
        lines = _PROC_LOCKS.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        # 1: POSIX  ADVISORY  WRITE 4711 fe:01:131 120 120
        _, _, _, kind, pid, file, first, last, *_ = [*line.split(), "", "", ""]
        if kind != "WRITE" or not first.isdigit() or not last.isdigit():
            continue
        byte = lock_bytes.get(int(file.rpartition(":")[2]), -1)
        if int(first) <= byte <= int(last) and int(pid) > 0:
            return int(pid)
    return None
