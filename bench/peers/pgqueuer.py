"""PgQueuer: its fastest driver is asyncpg. `settings`: those of `run`, and `pool`, how many connections."""

import asyncio
import json
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers.protocol import Handle, Payload, Peer, batches, serve

_ENTRYPOINT = "bench"


class PgQueuerPeer(Peer):
    packages = ("pgqueuer", "asyncpg", "uvloop")

    async def setup(self) -> None:
        conn = await asyncpg.connect(self.where)
        await Queries(AsyncpgDriver(conn)).install()
        await conn.execute("create table business (id bigint primary key, note text)")
        await conn.close()

    async def open(self) -> None:
        self._conn = await asyncpg.connect(self.where)
        self._queries = Queries(AsyncpgDriver(self._conn))

    async def close(self) -> None:
        await self._conn.close()

    async def publish(self, rows: list[Payload]) -> None:
        for batch in batches(rows, 5000):
            payload = [json.dumps(row).encode() for row in batch]
            await self._queries.enqueue([_ENTRYPOINT] * len(batch), payload, [0] * len(batch))

    async def publish_one(self, row: Payload) -> None:
        await self._queries.enqueue(_ENTRYPOINT, json.dumps(row).encode())

    async def transact(self, row: Payload) -> None:
        async with self._conn.transaction():
            await self._conn.execute("insert into business (id, note) values ($1, 'x')", row["id"])
            await self._queries.enqueue(_ENTRYPOINT, json.dumps(row).encode())

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        settings = dict(self.settings)
        size = settings.pop("pool", 0)
        if size:
            pool = await asyncpg.create_pool(self.where, min_size=size, max_size=size)
            app = PgQueuer.from_asyncpg_pool(pool)
        else:
            app = PgQueuer.from_asyncpg_connection(await asyncpg.connect(self.where))

        @app.entrypoint(_ENTRYPOINT)
        async def handler(job: Job) -> None:
            assert job.payload is not None
            handle(json.loads(job.payload))

        running = asyncio.create_task(app.run(**settings))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        app.shutdown.set()
        await running

    async def remaining(self) -> bool:
        return bool(await self._ask("select exists (select 1 from pgqueuer)"))

    async def settled(self) -> dict[str, int]:
        once = "select count(*) from pgqueuer_log where status = 'successful'"
        twice = f"select count(*) from (select 1 from ({once.replace('count(*)', 'job_id')}) l group by job_id having count(*) > 1) t"
        return {"settled": await self._ask(once), "twice": await self._ask(twice)}

    async def _ask(self, question: str) -> int:
        conn: Any = await asyncpg.connect(self.where)
        try:
            return await conn.fetchval(question)  # type: ignore[no-any-return]
        finally:
            await conn.close()


if __name__ == "__main__":
    serve(PgQueuerPeer, uvloop.new_event_loop)
