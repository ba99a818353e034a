"""Holdfast through its public API, one consumer of one event unless requested otherwise."""

import asyncio
import contextlib
import gc
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

from bench.peers.protocol import Handle, Payload, Peer, batches, serve
from holdfast import Holdfast, Step, WorkerOptions, Workflow
from holdfast.runtime.loop import COLLECT_AFTER

_BATCH = 5000


class HoldfastPeer(Peer):
    """`settings`: `consumers` per event, `batch` of its handler, `driver` of the caller's connection, `joins` a
    transaction of the caller to publish batches, `three_steps` of a workflow instead of the event, and options of the worker."""

    packages = ("holdfast", "psycopg", "asyncpg", "orjson", "uvloop")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        given = dict(settings)
        self._consumers = given.pop("consumers", 1)
        self._driver = given.pop("driver", "psycopg")
        self._joins = given.pop("joins", False)
        batch = given.pop("batch", None)
        three_steps = given.pop("three_steps", False)
        self._options: dict[str, Any] = {
            name: timedelta(seconds=v) if name == "poll" else v for name, v in given.items()
        }
        self.hf = Holdfast(where)
        self._handle: Handle = lambda payload: None
        for number in range(self._consumers if batch is None and not three_steps else 0):
            self.hf.consumer("bench.happened", name=f"bench{number}")(self._handler(number))
        if batch is not None:
            self.hf.consumer("bench.happened", name="bench0", batch=batch)(self._handle_all)
        self._workflow = self._three_steps() if three_steps else None
        self._conn: Any = None

    def _three_steps(self) -> Workflow:
        """Each step takes the result of the one before it."""
        self._consumers = 3
        workflow = self.hf.workflow("bench")

        @workflow.step
        async def one(ctx: Step, id: int) -> int:
            return id

        @workflow.step(after=one)
        async def two(ctx: Step, one: int) -> int:
            return one

        @workflow.step(after=two)
        async def three(ctx: Step, id: int, pad: str, two: int) -> int:
            self._handle({"id": id, "pad": pad})
            return two

        return workflow

    def _handler(self, number: int) -> Any:
        async def handler(payload: dict[str, Any]) -> None:
            if not number:
                self._handle(payload)

        return handler

    async def _handle_all(self, payloads: list[dict[str, Any]]) -> None:
        for payload in payloads:
            self._handle(payload)

    async def setup(self) -> None:
        self.hf.store.migrate()
        if self.postgres:
            import psycopg

            async with await psycopg.AsyncConnection.connect(self.where) as conn:
                await conn.execute("create table business (id bigint primary key, note text)")
        await self.hf.publish_many([], conn=None)  # registers the subscriptions

    @property
    def postgres(self) -> bool:
        return self.where.startswith("postgresql")

    async def open(self) -> None:
        await self.hf.publish_many([], conn=None)
        if self.postgres:
            self._conn = await self._connect()

    async def _connect(self) -> Any:
        if self._driver == "asyncpg":
            import asyncpg

            return await asyncpg.connect(self.where)
        import psycopg

        return await psycopg.AsyncConnection.connect(self.where, autocommit=True)

    async def close(self) -> None:
        if self._conn is not None:
            await self._conn.close()
        await self.hf.close()

    async def publish(self, rows: list[Payload]) -> None:
        if self._workflow is not None:
            await self._start_runs(self._workflow, rows)
            return
        for batch in batches(rows, _BATCH):
            await self.hf.publish_many([("bench.happened", row) for row in batch], conn=None)

    async def _start_runs(self, workflow: Workflow, rows: list[Payload]) -> None:
        # A start is one call; many in one transaction spare the commits.
        for batch in batches(rows, 1000):
            async with self._conn.transaction():
                for row in batch:
                    await workflow.using(conn=self._conn).start(**row)

    async def publish_batch(self, rows: list[Payload]) -> None:
        events = [("bench.happened", row) for row in rows]
        if self._joins:
            async with self._conn.transaction():
                await self.hf.publish_many(events, conn=self._conn)
        else:
            await self.hf.publish_many(events, conn=None)

    async def publish_one(self, row: Payload) -> None:
        await self.hf.publish("bench.happened", row, conn=None)

    async def transact(self, row: Payload) -> None:
        async with self._conn.transaction():
            if self._driver == "asyncpg":
                await self._conn.execute("insert into business (id, note) values ($1, 'x')", row["id"])
            else:
                await self._conn.execute("insert into business (id, note) values (%s, 'x')", (row["id"],))
            await self.hf.publish("bench.happened", row, conn=self._conn)

    @contextlib.asynccontextmanager
    async def slow_transactions(self) -> AsyncIterator[Callable[[Payload, float], Awaitable[None]]]:
        conn = await self._connect()

        async def transact(row: Payload, hold: float) -> None:
            async with conn.transaction():
                await self.hf.publish("bench.happened", row, conn=conn)
                await asyncio.sleep(hold)

        yield transact
        await conn.close()

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        self._handle = handle
        # A worker process sets the same, in `hf.run` and `holdfast worker`: this loop is the harness's.
        gc.set_threshold(*COLLECT_AFTER)
        await self.hf.work(WorkerOptions(cron=False, **self._options), stop=stop)

    async def remaining(self) -> bool:
        stats = await self.hf.ops.stats()
        return bool(stats.pending + stats.in_flight)

    async def settled(self) -> dict[str, int]:
        question = "select count(*), count(*) filter (where attempts > 1) from {} where status = 'delivered'"
        if self.postgres:
            import psycopg

            async with await psycopg.AsyncConnection.connect(self.where) as conn:
                cursor = await conn.execute(question.format("holdfast.delivery_view").encode())
                row = await cursor.fetchone()
        else:
            with contextlib.closing(sqlite3.connect(self.where.removeprefix("sqlite:///"))) as db:
                row = db.execute(question.format("holdfast_delivery_view")).fetchone()
        assert row is not None
        return {"settled": row[0] // self._consumers, "twice": row[1]}


def new_loop() -> Any:
    with contextlib.suppress(ImportError):
        from uvloop import new_event_loop

        return new_event_loop()
    return asyncio.new_event_loop()


if __name__ == "__main__":
    serve(HoldfastPeer, new_loop)
