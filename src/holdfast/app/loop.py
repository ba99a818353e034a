"""Running a coroutine as a program: the fast loop where there is one, and signals that end it in good order."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import structlog

from holdfast.engine.fields import raised

log = structlog.get_logger("holdfast")


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run`, with uvloop where it is installed."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        asyncio.run(main)
        return
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main)


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event, again: Callable[[], object]) -> Iterator[None]:
    """The first SIGTERM or SIGINT sets `stop`, a further one calls `again`; nothing changes outside the main thread."""
    loop = asyncio.get_running_loop()

    def signalled() -> None:
        if stop.is_set():
            again()
        stop.set()

    added = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, signalled)
            added.append(number)
    try:
        yield
    finally:
        for number in added:
            loop.remove_signal_handler(number)


async def then(event: asyncio.Event, call: Callable[[], None]) -> None:
    """Calls `call` once `event` is set."""
    await event.wait()
    call()


def say_if_failed(working: "asyncio.Task[None]") -> None:
    """An application goes on when its worker has failed; it is told at once, not when it ends."""
    if not working.cancelled() and (error := working.exception()):
        log.error("the worker of this application has failed", **raised(error))
