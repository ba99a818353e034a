"""SAQ on PostgreSQL; it publishes one at a time. `settings`: options of the worker, `pool`, `publishers` at once."""

import asyncio
from typing import Any

import psycopg
import uvloop
from saq import Queue, Worker

from bench.peers.protocol import Handle, Payload, Peer, serve


class SaqPeer(Peer):
    packages = ("saq", "psycopg", "uvloop")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._options = dict(settings)
        self._publishers = self._options.pop("publishers", 1)
        pool = self._options.pop("pool", None)
        self._sizes = {} if pool is None else {"min_size": pool, "max_size": pool}
        self._queue: Any = None

    async def setup(self) -> None:
        await self.open()
        await self.close()

    async def open(self) -> None:
        self._queue = Queue.from_url(self.where, **self._sizes)
        await self._queue.connect()

    async def close(self) -> None:
        await self._queue.disconnect()

    async def publish(self, rows: list[Payload]) -> None:
        waiting = iter(rows)

        async def publisher() -> None:
            for row in waiting:
                await self.publish_one(row)

        await asyncio.gather(*(publisher() for _ in range(self._publishers)))

    async def publish_one(self, row: Payload) -> None:
        await self._queue.enqueue("bench", id=row["id"], pad=row["pad"])

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        async def bench(ctx: Any, *, id: int, pad: str) -> None:
            handle({"id": id, "pad": pad})

        await self.open()
        worker: Any = Worker(self._queue, [("bench", bench)], **self._options)
        working = asyncio.create_task(worker.start())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await asyncio.wait({working}, timeout=10)

    async def remaining(self) -> bool:
        return bool(
            await self._ask("select exists (select 1 from saq_jobs where status in ('queued', 'active', 'new'))")
        )

    async def settled(self) -> dict[str, int]:
        return {"settled": await self._ask("select count(*) from saq_jobs where status = 'complete'")}

    async def _ask(self, question: str) -> int:
        async with await psycopg.AsyncConnection.connect(self.where) as conn:
            row: Any = await (await conn.execute(question.encode())).fetchone()
            return row[0]  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve(SaqPeer, uvloop.new_event_loop)
