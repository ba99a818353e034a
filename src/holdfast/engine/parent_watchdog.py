"""Worker processes that another one started end with it: nobody would replace them, stop them, or tell them to go."""

import asyncio
import os
from collections.abc import Mapping

from holdfast._log import get_logger

log = get_logger("holdfast.worker")

_PARENT = "HOLDFAST_PARENT"
_LOOK_EVERY = 0.5


def child_environment() -> Mapping[str, str]:
    """The environment for a worker process that is to end with this one, however this one ends."""
    return {**os.environ, _PARENT: str(os.getpid())}


def parent_pid() -> int | None:
    """The process this one is to end with, if there is one. Only the first caller learns it: what this process starts
    for other reasons must not take it for its own."""
    given = os.environ.pop(_PARENT, "")
    return int(given) if given.isdecimal() else None


async def watch_parent(parent: int, stop: asyncio.Event) -> None:
    """Sets `stop` once the parent is gone."""
    while os.getppid() == parent:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_EVERY)
    log.warning("parent process exited", parent=parent)
    stop.set()
