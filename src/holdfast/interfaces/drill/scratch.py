"""A store of a drill's own, with tables of an application beside it; nothing of it is left afterwards."""

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

_PATIENCE = 60.0
_LOOK = 0.05


class NeverHappened(Exception):
    """What a drill waits for did not come."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Where one drill takes place."""

    dsn: str
    schema: str
    database: Database
    logged: list[MutableMapping[str, Any]]
    """Every line that was logged meanwhile."""

    def app(self, **options: Any) -> Holdfast:
        """An application on the scratch store."""
        return Holdfast(self.dsn, schema=self.schema, source="drill", **options)


@contextmanager
def scratch(dsn: str | None) -> Iterator[Scratch]:
    """A temporary SQLite file, or a schema of its own in a PostgreSQL database."""
    with tempfile.TemporaryDirectory(prefix="holdfast-drill-") as folder, capture_logs() as logged:
        where = dsn or f"sqlite:///{Path(folder) / 'drill.db'}"
        schema = "holdfast" if dsn is None else f"holdfast_drill_{secrets.token_hex(4)}"
        place = Scratch(where, schema, open_database(where, schema), logged)
        app = place.app()
        try:
            app.store.migrate()
            place.database.create_tables()
            yield place
        finally:
            app.store.close_sync()
            if dsn is not None:
                place.database.drop()
            place.database.close()


@asynccontextmanager
async def working(app: Holdfast) -> AsyncIterator[None]:
    """A worker runs meanwhile, in this process."""
    stop = asyncio.Event()
    task = asyncio.create_task(app.work(WorkerOptions(cron=False), stop=stop))
    try:
        yield
    finally:
        stop.set()
        await task
        await app.close()


async def until(what: str, holds: Callable[[], Awaitable[object]]) -> None:
    """Waits until something holds; `NeverHappened` names what did not."""
    try:
        async with asyncio.timeout(_PATIENCE):
            while not await holds():  # noqa: ASYNC110
                await asyncio.sleep(_LOOK)
    except TimeoutError:
        raise NeverHappened(f"after {_PATIENCE:.0f} s: {what}") from None
