"""Repeats a task in spite of failures, and waits for the first of several events."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.telemetry.log_fields import error_fields

log = get_logger("holdfast.worker")


async def every(seconds: float, perform: Callable[[], Awaitable[None]], *, first: float | None = None) -> None:
    """Calls `perform` until cancelled, at intervals with jitter. A failure is logged and does not end it."""
    await asyncio.sleep(seconds * random.random() if first is None else first)  # noqa: S311
    while True:
        try:
            await perform()
        except StoreUnavailable as error:
            log.debug("store unavailable", task=_name(perform), error=str(error))
        except Exception as error:  # noqa: BLE001
            log.error("periodic task failed", task=_name(perform), **error_fields(error))
        await asyncio.sleep(seconds * random.uniform(0.75, 1.25))  # noqa: S311


def _name(perform: Callable[[], Awaitable[None]]) -> str:
    return getattr(perform, "__qualname__", repr(perform))


async def first(*waits: "asyncio.Task[None] | Coroutine[Any, Any, object]", until: float | None = None) -> None:
    """Waits until one of these ends, or until the given time. Tasks are not cancelled."""
    made = [asyncio.ensure_future(wait) for wait in waits if not isinstance(wait, asyncio.Task)]
    given = [wait for wait in waits if isinstance(wait, asyncio.Task)]
    timeout = None if until is None else max(0.0, until - time.monotonic())
    try:
        await asyncio.wait({*given, *made}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for one in made:
            one.cancel()
