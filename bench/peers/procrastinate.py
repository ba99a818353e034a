"""Procrastinate. `settings`: options of the worker, and `pool`, the most connections."""

import asyncio
from typing import Any

import procrastinate
import psycopg
import uvloop

from bench.peers.protocol import Handle, Payload, Peer, batches, serve


class ProcrastinatePeer(Peer):
    packages = ("procrastinate", "psycopg", "uvloop")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._options = dict(settings)
        pool = self._options.pop("pool", None)
        sizes = {} if pool is None else {"min_size": pool, "max_size": pool}
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=where, **sizes))
        self._handle: Handle = lambda payload: None

        @self._app.task(name="bench")
        async def bench(id: int, pad: str) -> None:
            self._handle({"id": id, "pad": pad})

        self._task = bench

    async def setup(self) -> None:
        async with self._app.open_async():
            await self._app.schema_manager.apply_schema_async()
        async with await psycopg.AsyncConnection.connect(self.where) as conn:
            await conn.execute("create table business (id bigint primary key, note text)")

    async def open(self) -> None:
        await self._app.open_async()
        self._conn = await psycopg.AsyncConnection.connect(self.where, autocommit=True)

    async def close(self) -> None:
        await self._conn.close()
        await self._app.close_async()

    async def publish(self, rows: list[Payload]) -> None:
        for batch in batches(rows, 1000):
            await self._task.batch_defer_async(*batch)

    async def publish_one(self, row: Payload) -> None:
        await self._task.defer_async(**row)

    async def transact(self, row: Payload) -> None:
        async with self._conn.transaction():
            await self._conn.execute("insert into business (id, note) values (%s, 'x')", (row["id"],))
            await self._task.configure(connection=self._conn).defer_async(**row)

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        self._handle = handle
        async with self._app.open_async():
            options: Any = self._options
            working = asyncio.create_task(self._app.run_worker_async(install_signal_handlers=False, **options))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            working.cancel()
            await asyncio.wait({working})

    async def remaining(self) -> bool:
        return bool(
            await self._ask("select exists (select 1 from procrastinate_jobs where status in ('todo', 'doing'))")
        )

    async def settled(self) -> dict[str, int]:
        done = "select count(*) from procrastinate_jobs where status = 'succeeded'"
        return {"settled": await self._ask(done), "twice": await self._ask(f"{done} and attempts > 1")}

    async def _ask(self, question: str) -> int:
        async with await psycopg.AsyncConnection.connect(self.where) as conn:
            row: Any = await (await conn.execute(question.encode())).fetchone()
            return row[0]  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve(ProcrastinatePeer, uvloop.new_event_loop)
