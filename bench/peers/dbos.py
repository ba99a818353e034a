"""DBOS: a workflow of no steps, or with `three_steps`, on a queue, on PostgreSQL or SQLite.

`settings`: those of the queue, `pool`, and `publishers` at once: it enqueues one at a time.
"""

import asyncio
import contextlib
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dbos import DBOS, DBOSClient

from bench.peers.protocol import Handle, Payload, Peer, serve

HANDLE: list[Handle] = [lambda payload: None]


@DBOS.workflow(name="bench")
async def bench(id: int, pad: str) -> None:
    HANDLE[0]({"id": id, "pad": pad})


@DBOS.step()
async def step(id: int) -> int:
    return id


@DBOS.workflow(name="three steps")
async def three_steps(id: int, pad: str) -> Any:
    one = await step(id)
    two = await step(one)
    three = await step(two)
    HANDLE[0]({"id": id, "pad": pad})
    return three


class DbosPeer(Peer):
    packages = ("dbos", "sqlalchemy", "psycopg")

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._queue = dict(settings)
        self._pool = self._queue.pop("pool", None)
        self._publishers = self._queue.pop("publishers", 1)
        self._name = "three steps" if self._queue.pop("three_steps", False) else "bench"

    @property
    def postgres(self) -> bool:
        return self.where.startswith("postgresql")

    async def setup(self) -> None:
        await asyncio.to_thread(self._launch)
        DBOS.destroy()
        if self.postgres:
            import psycopg

            async with await psycopg.AsyncConnection.connect(self.where) as conn:
                await conn.execute("create table business (id bigint primary key, note text)")

    def _launch(self) -> None:
        config: Any = {
            "name": "bench",
            "system_database_url": self.where,
            "log_level": "ERROR",
            "run_admin_server": False,
        }
        if self._pool is not None:
            config["sys_db_pool_size"] = self._pool
        DBOS(config=config)
        DBOS.launch()
        DBOS.register_queue("bench", **self._queue)

    async def open(self) -> None:
        self._client = DBOSClient(system_database_url=self.where, system_database_pool_size=self._pool)
        self._threads = ThreadPoolExecutor(self._publishers)
        if self.postgres:
            import sqlalchemy

            self._engine = sqlalchemy.create_engine(self.where.replace("postgresql://", "postgresql+psycopg://"))

    async def close(self) -> None:
        self._threads.shutdown()
        self._client.destroy()

    async def publish(self, rows: list[Payload]) -> None:
        loop = asyncio.get_running_loop()
        parts = [rows[number :: self._publishers] for number in range(self._publishers)]
        await asyncio.gather(*(loop.run_in_executor(self._threads, self._enqueue, part) for part in parts))

    def _enqueue(self, rows: list[Payload]) -> None:
        for row in rows:
            self._client.enqueue({"workflow_name": self._name, "queue_name": "bench"}, row["id"], row["pad"])

    async def transact(self, row: Payload) -> None:
        import sqlalchemy

        with self._engine.begin() as conn:
            conn.execute(sqlalchemy.text("insert into business (id, note) values (:id, 'x')"), {"id": row["id"]})
            options: Any = {"workflow_name": self._name, "queue_name": "bench"}
            self._client.enqueue_in_transaction(conn, options, row["id"], row["pad"])

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        HANDLE[0] = handle
        await asyncio.to_thread(self._launch)
        await stop.wait()
        await asyncio.to_thread(DBOS.destroy)

    async def remaining(self) -> bool:
        return bool(await self._count("status in ('ENQUEUED', 'PENDING', 'DELAYED')"))

    async def settled(self) -> dict[str, int]:
        return {
            "settled": await self._count("status = 'SUCCESS'"),
            "twice": await self._count("status = 'SUCCESS' and recovery_attempts > 1"),
        }

    async def _count(self, condition: str) -> int:
        if self.postgres:
            import psycopg

            async with await psycopg.AsyncConnection.connect(self.where) as conn:
                text = f"select count(*) from dbos.workflow_status where {condition}"
                row: Any = await (await conn.execute(text.encode())).fetchone()
                return row[0]  # type: ignore[no-any-return]
        with contextlib.closing(sqlite3.connect(self.where.removeprefix("sqlite:///"), timeout=30)) as db:
            text = f"select count(*) from workflow_status where {condition}"
            return db.execute(text).fetchone()[0]  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve(DbosPeer)
