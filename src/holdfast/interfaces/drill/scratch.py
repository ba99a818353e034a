"""A temporary store for one drill, with application tables; removed afterwards."""

import asyncio
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from holdfast import Holdfast, WorkerOptions
from holdfast.interfaces.demo.database import Database, open_database

_TIMEOUT = 60.0
_POLL_SECONDS = 0.05


class ConditionTimeout(Exception):
    """A condition that the drill waits for did not occur in time."""


@dataclass(frozen=True, slots=True)
class ScratchStore:
    """The temporary store of one drill."""

    dsn: str
    schema: str
    database: Database
    logged: list[MutableMapping[str, Any]]
    """Every line logged during the drill."""
    redis: str | None = None
    """The URL of a Redis server in which a drill may create a stream."""

    def app(self, **options: Any) -> Holdfast:
        """An application on this store."""
        return Holdfast(self.dsn, schema=self.schema, source="drill", **options)


@contextmanager
def scratch(dsn: str | None, redis: str | None = None) -> Iterator[ScratchStore]:
    """A temporary SQLite file, or a temporary schema in a PostgreSQL database."""
    with tempfile.TemporaryDirectory(prefix="holdfast-drill-") as folder, capture_logs() as logged:
        where = dsn or f"sqlite:///{Path(folder) / 'drill.db'}"
        schema = "holdfast" if dsn is None else f"holdfast_drill_{secrets.token_hex(4)}"
        store = ScratchStore(where, schema, open_database(where, schema), logged, redis)
        app = store.app()
        try:
            app.store.migrate()
            store.database.create_tables()
            yield store
        finally:
            app.store.close_sync()
            if dsn is not None:
                store.database.drop()


@asynccontextmanager
async def running_worker(app: Holdfast) -> AsyncIterator[None]:
    """Runs a worker in this process for the duration of the block."""
    stop = asyncio.Event()
    task = asyncio.create_task(app.work(WorkerOptions(cron=False), stop=stop))
    try:
        yield
    finally:
        stop.set()
        await task
        await app.close()


async def until(what: str, holds: Callable[[], Awaitable[object]]) -> None:
    """Waits until a condition holds; otherwise raises `ConditionTimeout`."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            while not await holds():  # noqa: ASYNC110
                await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise ConditionTimeout(f"this did not happen within {_TIMEOUT:.0f} s: {what}") from None
