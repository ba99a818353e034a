"""Ends worker processes with the process that started them: without it nothing would replace or stop them."""

import asyncio
import os
from collections.abc import Mapping

from holdfast._log import get_logger

log = get_logger("holdfast.worker")

_PARENT = "HOLDFAST_PARENT"
_LOOK_EVERY = 0.5


def child_environment() -> Mapping[str, str]:
    """The environment of a worker process that must end with this one, even if this one is killed."""
    return {**os.environ, _PARENT: str(os.getpid())}


def is_child() -> bool:
    """Whether another worker process started this one, and replaces it when it ends."""
    return _PARENT in os.environ


def parent_pid() -> int | None:
    """The id of the parent process whose end also ends this process, if one was given. Only the first call returns it, so
    that child processes of this process do not inherit it."""
    given = os.environ.pop(_PARENT, "")
    return int(given) if given.isdecimal() else None


async def watch_parent(parent: int, stop: asyncio.Event) -> None:
    """Sets `stop` once the parent is gone."""
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EVERY)
    log.warning("parent process exited", parent=parent)
    stop.set()
