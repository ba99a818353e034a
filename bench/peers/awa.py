"""awa-pg: a Rust core with Python handlers. `settings`: `queue`, the options of its queue, and options of `start`."""

import asyncio
from dataclasses import dataclass
from typing import Any

import psycopg
from awa import AsyncClient
from awa.bridge import insert_job

from bench.peers.protocol import Handle, Payload, Peer, batches, serve


@dataclass
class Bench:
    id: int
    pad: str


class AwaPeer(Peer):
    packages = ("awa-pg", "psycopg")

    async def setup(self) -> None:
        client = AsyncClient(self.where)
        await client.migrate()
        await client.install_queue_storage()
        await client.close()
        async with await psycopg.AsyncConnection.connect(self.where) as conn:
            await conn.execute("create table business (id bigint primary key, note text)")

    async def open(self) -> None:
        self._client = AsyncClient(self.where)
        self._conn = await psycopg.AsyncConnection.connect(self.where, autocommit=True)

    async def close(self) -> None:
        await self._conn.close()
        await self._client.close()

    async def publish(self, rows: list[Payload]) -> None:
        for batch in batches(rows, 1000):
            await self._client.enqueue_many_copy([Bench(**row) for row in batch], queue="bench")

    async def publish_one(self, row: Payload) -> None:
        await self._client.insert(Bench(**row), queue="bench")

    async def transact(self, row: Payload) -> None:
        async with self._conn.transaction():
            await self._conn.execute("insert into business (id, note) values (%s, 'x')", (row["id"],))
            await insert_job(self._conn, Bench(**row), queue="bench")

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        settings = dict(self.settings)
        queue: Any = settings.pop("queue", {"max_workers": 50})
        self._worker = AsyncClient(self.where, settings.pop("connections", 10))

        @self._worker.task(Bench, queue="bench")
        async def bench(job: Any) -> None:
            handle({"id": job.args.id, "pad": job.args.pad})

        await self._worker.start([{"name": "bench", **queue}], **settings)
        await stop.wait()
        await self._worker.shutdown()

    async def remaining(self) -> bool:
        # Its statistics are rolled up every few seconds; its lists are not.
        for state in ("available", "running", "retryable", "scheduled"):
            if await self._worker.list_jobs(state=state, queue="bench", limit=1):
                return True
        return False

    async def settled(self) -> dict[str, int]:
        return {}


if __name__ == "__main__":
    serve(AwaPeer)
