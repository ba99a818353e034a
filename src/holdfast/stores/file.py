"""Private files: only their owner can read the payloads in them."""

import os


def private(path: str | os.PathLike[str], flags: int) -> int:
    """An opener for `open`: only the owner can read and write a file that it creates, regardless of the umask.

    An existing file keeps its mode.
    """
    return os.open(path, flags, 0o600)
