"""taskiq on Redis Streams, its broker that acknowledges. `settings`: those of the receiver, and `publishers` at once."""

import asyncio
from typing import Any

import redis.asyncio
import uvloop
from taskiq.api import run_receiver_task
from taskiq_redis import RedisStreamBroker

from bench.peers.protocol import Handle, Payload, Peer, serve


class TaskiqPeer(Peer):
    packages = ("taskiq", "taskiq-redis", "redis", "uvloop")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._options = dict(settings)
        self._publishers = self._options.pop("publishers", 1)
        self._handle: Handle = lambda payload: None
        # From the first message on: the worker starts after they were published.
        self._broker = RedisStreamBroker(where or "redis://127.0.0.1", consumer_id="0")

        @self._broker.task(task_name="bench")
        async def bench(row: dict[str, Any]) -> None:
            self._handle(row)

        self._task = bench

    async def setup(self) -> None:
        await self.open()
        await self.close()

    async def open(self) -> None:
        await self._broker.startup()

    async def close(self) -> None:
        await self._broker.shutdown()

    async def publish(self, rows: list[Payload]) -> None:
        waiting = iter(rows)

        async def publisher() -> None:
            for row in waiting:
                await self._task.kiq(row)

        await asyncio.gather(*(publisher() for _ in range(self._publishers)))

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        self._handle = handle
        self._redis = redis.asyncio.Redis.from_url(self.where)
        working = asyncio.create_task(run_receiver_task(self._broker, run_startup=True, **self._options))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        working.cancel()
        await asyncio.wait({working}, timeout=5)

    async def remaining(self) -> bool:
        return bool((await self._redis.xpending("taskiq", "taskiq"))["pending"])


if __name__ == "__main__":
    serve(TaskiqPeer, uvloop.new_event_loop)
