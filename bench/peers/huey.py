"""Huey on SQLite, threads and plain functions. It takes a task off the queue before it runs it, and keeps nothing of it.

`settings`: options of the consumer, and `huey`, those of the storage.
"""

import asyncio
import threading
from typing import Any

from huey import SqliteHuey

from bench.peers.protocol import Handle, Payload, Peer, serve


class HueyPeer(Peer):
    packages = ("huey",)

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._options = dict(settings)
        storage = self._options.pop("huey", {})
        self._handle: Handle = lambda payload: None
        self._lock = threading.Lock()
        if not where:
            return
        self._huey = SqliteHuey(filename=where.removeprefix("sqlite:///"), fsync=True, **storage)

        @self._huey.task(name="bench")
        def bench(id: int, pad: str) -> None:
            with self._lock:
                self._handle({"id": id, "pad": pad})

        self._task = bench

    async def publish(self, rows: list[Payload]) -> None:
        for row in rows:
            self._task(row["id"], row["pad"])

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        self._handle = handle
        consumer = self._huey.create_consumer(periodic=False, **self._options)
        consumer.start()
        await stop.wait()
        consumer.stop(graceful=True)

    async def remaining(self) -> bool:
        return bool(self._huey.pending_count())


if __name__ == "__main__":
    serve(HueyPeer)
