"""Oban for Python, the free edition. `settings`: `slots` of the queue, `pool`, and options of `Oban`."""

import asyncio
from typing import Any

import psycopg
import uvloop
from oban import Oban, worker
from oban.schema import install

from bench.peers.protocol import Handle, Payload, Peer, batches, serve

HANDLE: list[Handle] = [lambda payload: None]


@worker(queue="default")
class Bench:
    async def process(self, job: Any) -> None:
        HANDLE[0](job.args)


class ObanPeer(Peer):
    packages = ("oban", "psycopg", "uvloop")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._options = dict(settings)
        self._slots = self._options.pop("slots", 10)
        pool = self._options.pop("pool", None)
        self._sizes = {} if pool is None else {"min_size": pool, "max_size": pool}

    async def setup(self) -> None:
        pool = await Oban.create_pool(self.where)
        await install(pool)
        async with pool.connection() as conn:
            await conn.execute("create table business (id bigint primary key, note text)")
        await pool.close()

    async def open(self) -> None:
        self._pool = await Oban.create_pool(self.where, **self._sizes)
        self._oban = await Oban(pool=self._pool).start()
        self._conn = await psycopg.AsyncConnection.connect(self.where, autocommit=True)

    async def close(self) -> None:
        await self._conn.close()
        await self._oban.stop()
        await self._pool.close()

    async def publish(self, rows: list[Payload]) -> None:
        make: Any = Bench
        for batch in batches(rows, 1000):
            await self._oban.enqueue_many([make.new(row) for row in batch])

    async def transact(self, row: Payload) -> None:
        make: Any = Bench
        async with self._conn.transaction():
            await self._conn.execute("insert into business (id, note) values (%s, 'x')", (row["id"],))
            await self._oban.enqueue(make.new(row), conn=self._conn)

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        HANDLE[0] = handle
        pool = await Oban.create_pool(self.where, **self._sizes)
        async with Oban(pool=pool, queues={"default": self._slots}, **self._options):
            await stop.wait()
        await pool.close()

    async def remaining(self) -> bool:
        states = "('available', 'scheduled', 'executing', 'retryable')"
        return bool(await self._ask(f"select exists (select 1 from oban_jobs where state in {states})"))

    async def settled(self) -> dict[str, int]:
        done = "select count(*) from oban_jobs where state = 'completed'"
        return {"settled": await self._ask(done), "twice": await self._ask(f"{done} and attempt > 1")}

    async def _ask(self, question: str) -> int:
        async with await psycopg.AsyncConnection.connect(self.where) as conn:
            row: Any = await (await conn.execute(question.encode())).fetchone()
            return row[0]  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve(ObanPeer, uvloop.new_event_loop)
