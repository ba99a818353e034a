"""Files that hold payloads: created for their owner alone."""

import os


def private(path: str | os.PathLike[str], flags: int) -> int:
    """An opener for `open`: a file that it creates can be read and written by its owner alone, regardless of the umask.

    A file that exists keeps its mode.
    """
    return os.open(path, flags, 0o600)
