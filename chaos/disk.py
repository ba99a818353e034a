"""A small disk that can be filled: a tmpfs, which only root may mount."""

import atexit
import os
import pwd
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CHUNK = 1 << 20


class SmallDisk:
    """A tmpfs of so many megabytes on a directory. Where it cannot be mounted, the directory is used as it is."""

    def __init__(self, directory: Path, megabytes: int, owner: pwd.struct_passwd | None = None) -> None:
        self.directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if owner is not None:
            os.chown(directory, owner.pw_uid, owner.pw_gid)
        options = f"size={megabytes}m,mode=0700" + ("" if owner is None else f",uid={owner.pw_uid},gid={owner.pw_gid}")
        command = ["mount", "-t", "tmpfs", "-o", options, "holdfast-chaos", str(directory)]
        done = subprocess.run(command, check=False, capture_output=True, text=True) if os.geteuid() == 0 else None
        self.problem = "" if done is not None and done.returncode == 0 else "a small disk can be mounted only as root"
        if not self.problem:
            atexit.register(self.close)

    @contextmanager
    def full(self) -> Iterator[None]:
        """Nothing more can be written to it."""
        ballast = self.directory / "ballast"
        with ballast.open("wb", buffering=0) as file:
            size = _CHUNK
            while size:
                try:
                    file.write(b"\0" * size)
                except OSError:
                    size //= 2
        try:
            yield
        finally:
            ballast.unlink()

    def close(self) -> None:
        """Unmounts it. Its files are gone."""
        if not self.problem:
            atexit.unregister(self.close)
            subprocess.run(["umount", "--lazy", str(self.directory)], check=False)
