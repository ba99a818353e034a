"""streaQ on Redis Streams. `settings`: those of the worker."""

import asyncio
from typing import Any

from streaq import Worker

from bench.peers.protocol import Handle, Payload, Peer, batches, serve


class StreaqPeer(Peer):
    packages = ("streaq", "coredis")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._handle: Handle = lambda payload: None
        self._worker: Any = Worker(redis_url=where or "redis://127.0.0.1", handle_signals=False, **settings)

        @self._worker.task(name="bench")
        async def bench(row: dict[str, Any]) -> None:
            self._handle(row)

        self._task = bench

    async def publish(self, rows: list[Payload]) -> None:
        async with self._worker:
            for batch in batches(rows, 1000):
                await self._worker.enqueue_many([self._task.enqueue(row) for row in batch])

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        self._handle = handle
        working = asyncio.create_task(self._worker.run_async())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await asyncio.wait({working}, timeout=5)

    async def remaining(self) -> bool:
        return bool(await self._worker.queue_size())


if __name__ == "__main__":
    serve(StreaqPeer)
