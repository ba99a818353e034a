"""arq on Redis; it publishes one at a time. `settings`: options of the worker, and `publishers` at once."""

import asyncio
from typing import Any

import uvloop
from arq import Worker, create_pool, func
from arq.connections import RedisSettings

from bench.peers.protocol import Handle, Payload, Peer, serve


class ArqPeer(Peer):
    packages = ("arq", "redis", "uvloop")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._options = dict(settings)
        self._publishers = self._options.pop("publishers", 1)

    async def open(self) -> None:
        self._pool = await create_pool(RedisSettings.from_dsn(self.where))

    async def close(self) -> None:
        await self._pool.aclose()

    async def publish(self, rows: list[Payload]) -> None:
        waiting = iter(rows)

        async def publisher() -> None:
            for row in waiting:
                await self._pool.enqueue_job("bench", row)

        await asyncio.gather(*(publisher() for _ in range(self._publishers)))

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        async def bench(ctx: Any, row: Payload) -> None:
            handle(row)

        await self.open()
        settings = RedisSettings.from_dsn(self.where)
        options: Any = self._options
        worker = Worker([func(bench, name="bench")], redis_settings=settings, handle_signals=False, **options)
        working = asyncio.create_task(worker.async_run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await asyncio.wait({working})

    async def remaining(self) -> bool:
        return bool(await self._pool.zcard("arq:queue"))


if __name__ == "__main__":
    serve(ArqPeer, uvloop.new_event_loop)
