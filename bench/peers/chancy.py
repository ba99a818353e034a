"""Chancy with its executor for async handlers; its default runs plain functions in processes. `settings`: those of a queue, and
`send_outgoing_interval` of the worker."""

import asyncio
from typing import Any

import uvloop
from chancy import Chancy, Queue, Worker, job

from bench.peers import chancy as imported
from bench.peers.protocol import Handle, Payload, Peer, serve

HANDLE: list[Handle] = [lambda payload: None]


@job(queue="default")
async def bench(*, id: int, pad: str) -> None:
    HANDLE[0]({"id": id, "pad": pad})


class ChancyPeer(Peer):
    packages = ("chancy", "psycopg", "uvloop")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._queue = dict(settings)
        self._interval = self._queue.pop("send_outgoing_interval", None)

    async def setup(self) -> None:
        async with Chancy(self.where) as chancy:
            await chancy.migrate()
            await chancy.declare(Queue("default", executor=Chancy.Executor.Async, **self._queue))
            async with chancy.pool.connection() as conn:
                await conn.execute("create table business (id bigint primary key, note text)")

    async def open(self) -> None:
        self._chancy = await Chancy(self.where).__aenter__()

    async def close(self) -> None:
        await self._chancy.__aexit__(None, None, None)

    def _job(self, row: Payload) -> Any:
        # The worker imports it by name, so it must not be this program's own copy.
        make: Any = imported.bench
        return make.job.with_kwargs(**row)

    async def publish(self, rows: list[Payload]) -> None:
        async for _ in self._chancy.push_many([self._job(row) for row in rows]):
            pass

    async def publish_one(self, row: Payload) -> None:
        await self._chancy.push(self._job(row))

    async def transact(self, row: Payload) -> None:
        async with self._chancy.pool.connection() as conn, conn.transaction():
            await conn.execute("insert into business (id, note) values (%s, 'x')", (row["id"],))
            from psycopg.rows import dict_row

            async with conn.cursor(row_factory=dict_row) as cursor:
                await self._chancy.push_ex(cursor, self._job(row))

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        imported.HANDLE[0] = handle
        async with Chancy(self.where) as chancy:
            worker = Worker(chancy, register_signal_handlers=False)
            if self._interval is not None:
                worker.send_outgoing_interval = self._interval
            async with worker:
                await stop.wait()

    async def remaining(self) -> bool:
        return bool(
            await self._ask(
                "select exists (select 1 from chancy_jobs where state in ('pending', 'running', 'retrying'))"
            )
        )

    async def settled(self) -> dict[str, int]:
        return {"settled": await self._ask("select count(*) from chancy_jobs where state = 'succeeded'")}

    async def _ask(self, question: str) -> int:
        import psycopg

        async with await psycopg.AsyncConnection.connect(self.where) as conn:
            row: Any = await (await conn.execute(question.encode())).fetchone()
            return row[0]  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve(ChancyPeer, uvloop.new_event_loop)
