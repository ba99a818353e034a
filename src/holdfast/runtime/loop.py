"""Running a coroutine as a program: the fast loop where there is one, and signals that end it in good order."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.log_fields import error_fields
from holdfast.engine.periodic import first

log = get_logger("holdfast")

# The interpreter looks for cycles after every 700 new objects: a third of a worker's time, when its handlers are short.
COLLECT_AFTER = (10_000, 20, 20)


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` for a program that does nothing else: with uvloop where it is installed, and fewer collections."""
    with reduced_gc(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if there is one.

    What is done without a loop belongs after this call, not into an `except`: whatever fails there would name
    "no running event loop" as its cause.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


@contextlib.contextmanager
def reduced_gc() -> Iterator[None]:
    """Looks for garbage cycles less often, until the end of the block."""
    before = gc.get_threshold()
    if 0 < before[0] < COLLECT_AFTER[0]:
        gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


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


async def call_when_set(event: asyncio.Event, call: Callable[[], None]) -> None:
    """Calls `call` once `event` is set."""
    await event.wait()
    call()


def log_if_failed(working: "asyncio.Task[None]") -> None:
    """An application goes on when its worker has failed; it is told at once, not when it ends."""
    if not working.cancelled() and (error := working.exception()):
        log.error("worker failed", **error_fields(error))


async def wait_for_store(prepare: Callable[[], Awaitable[None]], stop: asyncio.Event | None, *, patient: bool) -> bool:
    """Prepares the store, waiting for it if patient; false when told to stop meanwhile."""
    stop, pause = stop or asyncio.Event(), 0.1
    while not stop.is_set():
        preparing = asyncio.ensure_future(prepare())
        try:
            await first(preparing, stop.wait())
            if not preparing.done():
                break
            preparing.result()
            return True
        except StoreUnavailable as error:
            if not patient:
                raise
            log.warning("store unavailable", task="start", error=str(error))
        finally:
            preparing.cancel()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), pause)
        pause = min(pause * 2, 5.0)
    return False
