"""Doing something again and again, whatever happens."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import structlog

from holdfast.core.errors import StoreUnavailable
from holdfast.engine.fields import raised

log = structlog.get_logger("holdfast.worker")


async def every(seconds: float, perform: Callable[[], Awaitable[None]], *, first: float | None = None) -> None:
    """Calls `perform` until cancelled, with jitter between; one failure is logged and does not end it."""
    await asyncio.sleep(seconds * random.random() if first is None else first)  # noqa: S311
    while True:
        try:
            await perform()
        except StoreUnavailable as error:
            log.debug("waiting for the store", error=str(error))
        except Exception as error:  # noqa: BLE001
            log.error("a periodic duty failed", duty=getattr(perform, "__qualname__", repr(perform)), **raised(error))
        await asyncio.sleep(seconds * random.uniform(0.75, 1.25))  # noqa: S311
