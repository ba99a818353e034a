"""The bound: a bare loop of Holdfast's own statements on the same driver, with the same batches and guarantees.

It claims, fences and settles as the store does, and nothing else: no types, no retries, no lease to renew, no slots.
One connection claims the next batch while another settles the last, as in a worker.
"""

import asyncio
import random
import time
from datetime import timedelta
from typing import Any

import orjson
import psycopg
from psycopg.types.numeric import Int8Dumper

from bench.peers.holdfast import new_loop
from bench.peers.protocol import Handle, Payload, Peer, batches, serve
from holdfast import Holdfast
from holdfast.core.identity import delivery_id, uuid7
from holdfast.stores.deliveries.claim import Claimed, Lane, claim
from holdfast.stores.dialect import Stream, Style
from holdfast.stores.operation import Query
from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.postgres.notifier import HINT
from holdfast.stores.postgres.store import HOT_SESSION, SESSION

_ID, _FENCE, _RUN_AT, _PAYLOAD = (Claimed._fields.index(name) for name in ("id", "fence", "run_at", "payload"))
_EVENT, _CONSUMER, _WORKER, _CHANNEL = "bench.happened", "bench0", "bare", "bare"


class Bare(Peer):
    """`settings`: `batch`, how many are claimed and settled at once."""

    packages = ("psycopg", "orjson", "uvloop")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._batch = settings.get("batch", 500)
        self._dialect = PostgresDialect()
        self._conn: Any = None
        self._notifying: asyncio.Future[Any] | None = None

    async def setup(self) -> None:
        hf = Holdfast(self.where)
        hf.consumer(_EVENT, name=_CONSUMER)(lambda payload: None)
        hf.store.migrate()
        await hf.publish_many([], conn=None)
        await hf.close()
        async with await self._connect() as conn:
            await conn.execute("create table business (id bigint primary key, note text)")

    async def open(self) -> None:
        self._conn = await self._connect()

    async def close(self) -> None:
        if self._notifying is not None:
            await self._notifying
        await self._conn.close()

    async def publish(self, rows: list[Payload]) -> None:
        for batch in batches(rows, 5000):
            messages, deliveries = self._streams(batch)
            async with self._conn.transaction():
                await self._run(self._conn, Query("load_messages", rows=messages))
                await self._run(self._conn, Query("load_deliveries", rows=deliveries))

    def _streams(self, rows: list[Payload]) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        now = time.time_ns() // 1_000_000
        ids = [uuid7(now, random.getrandbits(74)) for _ in rows]
        texts = [orjson.dumps(row).decode() for row in rows]
        return (
            [(id, _EVENT, "app", text, "{}", 0, 1) for id, text in zip(ids, texts, strict=True)],
            [(delivery_id(id, _CONSUMER), id, _CONSUMER, "default", 1, 0) for id in ids],
        )

    async def publish_one(self, row: Payload) -> None:
        await self._run(self._conn, self._insert([row]))
        # Not awaited within the call: what is measured from its return is the round trip of NOTIFY and claim.
        self._notifying = asyncio.ensure_future(self._conn.execute(HINT, (_CHANNEL,)))

    async def transact(self, row: Payload) -> None:
        async with self._conn.transaction():
            await self._conn.execute("insert into business (id, note) values (%s, 'x')", (row["id"],))
            await self._run(self._conn, self._insert([row]))

    def _insert(self, rows: list[Payload]) -> Query:
        count, now = len(rows), time.time_ns() // 1_000_000
        ids = [uuid7(now, random.getrandbits(74)) for _ in rows]
        nothing = [None] * count
        messages: dict[str, list[Any]] = {
            "id": ids,
            "type": [_EVENT] * count,
            "source": ["app"] * count,
            "payload": [orjson.dumps(row).decode() for row in rows],
            "headers": ["{}"] * count,
            "generation": [0] * count,
            "occurred_at": nothing,
            "sub_epoch": [1] * count,
        }
        deliveries: dict[str, list[Any]] = {
            "delivery_id": [delivery_id(id, _CONSUMER) for id in ids],
            "message_id": ids,
            "consumer": [_CONSUMER] * count,
            "queue": ["default"] * count,
            "priority": [1] * count,
            "delivery_generation": [0] * count,
            "max_attempts": nothing,
            "delay": nothing,
            "run_at": nothing,
            "retry": nothing,
        }
        return Query("publish", batches={"messages": messages, "deliveries": deliveries})

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        woken = asyncio.Event()
        to_settle: asyncio.Queue[list[tuple[Any, ...]] | None] = asyncio.Queue(1)
        listening = asyncio.create_task(self._listen(woken))
        settling = asyncio.create_task(self._settle(to_settle))
        lane = Lane("default", _CONSUMER, 0, 1)
        floor = lane
        async with await self._connect(HOT_SESSION) as conn:
            while not stop.is_set():
                woken.clear()
                rows = await self._run(conn, _first(claim([floor], _WORKER, timedelta(seconds=30), self._batch)))
                if rows:
                    lowest = min((row[_RUN_AT], row[_ID]) for row in rows)
                    floor = lane._replace(floor_at=lowest[0], floor_id=lowest[1])
                    for row in rows:
                        handle(orjson.loads(row[_PAYLOAD]))
                    await to_settle.put(rows)
                elif floor != lane:
                    floor = lane
                else:
                    waiting = asyncio.create_task(woken.wait())
                    await asyncio.wait({waiting}, timeout=0.2)
                    waiting.cancel()
            await to_settle.put(None)
            await settling
        listening.cancel()

    async def _settle(self, queue: "asyncio.Queue[list[tuple[Any, ...]] | None]") -> None:
        async with await self._connect(HOT_SESSION) as conn:
            while (rows := await queue.get()) is not None:
                settlements = {"delivery_id": [row[_ID] for row in rows], "fence": [row[_FENCE] for row in rows]}
                query = Query("settle_delivered", {"worker": _WORKER}, {"settlements": settlements})
                if len(await self._run(conn, query)) != len(rows):
                    raise RuntimeError("a settle was lost")

    async def _listen(self, woken: asyncio.Event) -> None:
        async with await self._connect() as conn:
            await conn.execute(f"listen {_CHANNEL}")
            async for _ in conn.notifies():
                woken.set()

    async def _run(self, conn: Any, query: Query) -> list[tuple[Any, ...]]:
        text, values = next(self._dialect.expand(query, Style.PYFORMAT))
        async with conn.cursor(binary=True) as cursor:
            if isinstance(values, Stream):
                async with cursor.copy(text) as copy:
                    for piece in values.pieces:
                        await copy.write(piece)
                return []
            await cursor.execute(text, values)
            return await cursor.fetchall()  # type: ignore[no-any-return]

    async def _connect(self, session: str = SESSION) -> Any:
        conn = await psycopg.AsyncConnection.connect(self.where, autocommit=True)
        conn.adapters.register_dumper(int, Int8Dumper)
        await conn.execute(session)
        return conn

    async def remaining(self) -> bool:
        return bool(
            await self._ask("select exists (select 1 from holdfast.delivery where status in ('pending', 'in_flight'))")
        )

    async def settled(self) -> dict[str, int]:
        settled = "select count(*) from holdfast.delivery where status = 'delivered'"
        return {"settled": await self._ask(settled), "twice": await self._ask(f"{settled} and attempts > 1")}

    async def _ask(self, question: str) -> int:
        async with await self._connect() as conn:
            return (await (await conn.execute(question)).fetchone())[0]  # type: ignore[no-any-return]


def _first(operation: Any) -> Query:
    """The one statement of an operation, with the values it builds; its answer is taken as the driver gives it."""
    return next(operation.start())  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve(Bare, new_loop)
