"""Runs a coroutine as a program: with uvloop if installed, and a clean stop on signals."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.worker.periodic import first
from holdfast.stores.protocol import Store

log = get_logger("holdfast")

# By default the interpreter collects cycles after every 700 new objects: a third of a worker's time with short handlers.
COLLECT_AFTER = (10_000, 20, 20)


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """`asyncio.run` with uvloop, if it is installed, and less frequent garbage collection."""
    with reduced_gc(), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(main)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop that runs in this thread, if any.

    A caller without a loop must not act inside an `except RuntimeError`: its errors would name "no running event loop" as
    their cause.
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
    """Collects garbage cycles less often inside the block."""
    before = gc.get_threshold()
    if 0 < before[0] < COLLECT_AFTER[0]:
        gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextlib.contextmanager
def stopped_by_signals(stop: asyncio.Event, again: Callable[[], object]) -> Iterator[None]:
    """The first SIGTERM or SIGINT sets `stop`, the next calls `again`. It does nothing outside the main thread."""
    loop = asyncio.get_running_loop()

    def signaled() -> None:
        if stop.is_set():
            again()
        stop.set()

    added = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, signaled)
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
    """Logs the failure of an embedded worker at once: the application continues without it."""
    if not working.cancelled() and (error := working.exception()):
        log.error("worker failed", **error_fields(error))


async def lock_engine(engine: contextlib.ExitStack, store: Store) -> None:
    """Takes the lock of the engine, for `wait_for_store`: child processes of a killed engine may still hold it."""
    engine.enter_context(store.engine_lock())


async def wait_for_store(prepare: Callable[[], Awaitable[None]], stop: asyncio.Event | None, *, patient: bool) -> bool:
    """Prepares the store; with `patient`, waits until it is available. Returns false if `stop` is set first."""
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
