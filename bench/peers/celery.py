"""Celery on Redis, one process: the pools that run in it, with plain functions. `settings`: `worker` and `app`, those of each."""

import asyncio
import threading
from typing import Any

from celery import Celery

from bench.peers.protocol import Handle, Payload, Peer, serve


class CeleryPeer(Peer):
    packages = ("celery", "kombu", "redis")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._handle: Handle = lambda payload: None
        self._app: Any = Celery("bench", broker=where, set_as_current=True)
        self._app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False, **settings.get("app", {}))

        @self._app.task(name="bench")
        def bench(row: dict[str, Any]) -> None:
            self._handle(row)

        self._task = bench

    async def publish(self, rows: list[Payload]) -> None:
        with self._app.producer_pool.acquire(block=True) as producer:
            for row in rows:
                self._task.apply_async((row,), producer=producer)

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        self._handle = handle
        options = {"pool": "solo", "without_heartbeat": True, "without_mingle": True, "without_gossip": True}
        worker = self._app.Worker(loglevel="ERROR", **options | self.settings.get("worker", {}))
        threading.Thread(target=worker.start, daemon=True).start()
        await stop.wait()
        worker.stop()

    async def remaining(self) -> bool:
        with self._app.connection_for_read() as connection:
            client = connection.default_channel.client
            return bool(client.llen("celery") + client.hlen("unacked"))


if __name__ == "__main__":
    serve(CeleryPeer)
