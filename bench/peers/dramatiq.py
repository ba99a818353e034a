"""Dramatiq on Redis: threads and plain functions. `settings`: `worker_threads` and `prefetch`."""

import asyncio
import json
import os
import sys
from typing import Any

from bench.peers.protocol import Handle, Payload, Peer, serve

# It reads this when it is imported.
if prefetch := json.loads(sys.argv[2])["settings"].get("prefetch"):
    os.environ["dramatiq_queue_prefetch"] = str(prefetch)  # noqa: SIM112

import dramatiq
from dramatiq.brokers.redis import RedisBroker


class DramatiqPeer(Peer):
    packages = ("dramatiq", "redis")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._handle: Handle = lambda payload: None
        self._broker = RedisBroker(url=where or "redis://127.0.0.1")
        dramatiq.set_broker(self._broker)

        @dramatiq.actor(actor_name="bench")
        def bench(row: dict[str, Any]) -> None:
            self._handle(row)

        self._actor = bench

    async def publish(self, rows: list[Payload]) -> None:
        for row in rows:
            self._actor.send(row)

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        self._handle = handle
        worker = dramatiq.Worker(self._broker, worker_threads=self.settings.get("worker_threads", 8))
        worker.start()
        await stop.wait()
        await asyncio.to_thread(worker.stop)

    async def remaining(self) -> bool:
        # What waits and what is not acknowledged.
        return bool(self._broker.client.hlen("dramatiq:default.msgs"))


if __name__ == "__main__":
    serve(DramatiqPeer)
