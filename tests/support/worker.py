"""Runs a worker in the event loop of the test, and reads its results."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from holdfast import Holdfast, WorkerOptions
from holdfast._log import background
from holdfast.core.delivery import Delivery, Status
from holdfast.stores.queries.query import Filter, Run, deliveries, runs
from tests.support.builders import age, sql

PATIENCE = 20.0
LEASE = timedelta(seconds=2)

Log = list[dict[str, Any]]


def options(**given: Any) -> WorkerOptions:
    """A worker that looks often and lives under a short lease."""
    usual: dict[str, Any] = {
        "lease": LEASE,
        "poll": timedelta(milliseconds=20),
        "grace": timedelta(seconds=5),
        "concurrency": 10,
    }
    return WorkerOptions(**usual | given)


async def drain(hf: Holdfast, **given: Any) -> None:
    """Works until nothing is left that is due within the idle limit."""
    await asyncio.wait_for(hf.work(options(**{"until_idle": True, "cron": False} | given)), PATIENCE)


@asynccontextmanager
async def working(hf: Holdfast, **given: Any) -> AsyncIterator["asyncio.Task[None]"]:
    """Runs a worker during the test and stops it at the end."""
    stop = asyncio.Event()
    task = asyncio.create_task(hf.work(options(**given), stop=stop))
    try:
        yield task
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE)


async def eventually(holds: Callable[[], Awaitable[Any] | Any], problem: str = "it did not come about") -> Any:
    """Polls until the condition holds, and returns its first true value."""
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = holds()
        if inspect.isawaitable(answer):
            answer = await answer
        if answer:
            return answer
        assert time.monotonic() < deadline, problem
        await asyncio.sleep(0.01)


async def wait_for(event: asyncio.Event) -> None:
    """Waits for an event that a handler sets."""
    await asyncio.wait_for(event.wait(), PATIENCE)


async def all_of(hf: Holdfast, consumer: str | None = None) -> list[Delivery]:
    """The deliveries of a consumer, or all, oldest first."""
    wanted = Filter(consumers=() if consumer is None else (consumer,))
    return [listed.delivery for listed in reversed(await hf.store.run(deliveries(wanted, limit=1000)))]


async def only(hf: Holdfast, consumer: str | None = None) -> Delivery:
    """The one delivery there is."""
    (found,) = await all_of(hf, consumer)
    return found


async def statuses(hf: Holdfast, consumer: str | None = None) -> list[Status]:
    return [found.status for found in await all_of(hf, consumer)]


async def run_records(hf: Holdfast, consumer: str | None = None) -> list[Run]:
    """The runs recorded of the one delivery there is."""
    return await hf.store.run(runs((await only(hf, consumer)).id))


async def pass_time(hf: Holdfast, by: timedelta, *tables: str) -> None:
    """Moves stored times back; in a thread, because a row may be locked by a transaction of this very loop."""
    await asyncio.to_thread(age, hf.store, by, *tables)


async def query(hf: Holdfast, text: str) -> list[tuple[Any, ...]]:
    """Runs a statement of the test's own behind the store's back, likewise."""
    return await asyncio.to_thread(sql, hf.store, text)


def logged(log: Log, event: str) -> Log:
    """The log lines with this text; those that the logging thread holds are written first."""
    background.flush()
    return [line for line in log if line["event"] == event]
