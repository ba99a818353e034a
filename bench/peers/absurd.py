"""Absurd; its tables come from its repository, by its own tool. `settings`: `three_steps` of a task, and those of
`start_worker`."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd

from bench.peers.protocol import Handle, Payload, Peer, Unable, serve

_VERSION = "0.5.1"
_FETCHED = Path(__file__).parents[2] / ".cache" / "bench" / "absurd.sql"
"""Its tables, fetched by hand where its own tool cannot reach the repository."""


class AbsurdPeer(Peer):
    packages = ("absurd-sdk", "psycopg")

    async def setup(self) -> None:
        if _FETCHED.exists():
            async with await psycopg.AsyncConnection.connect(self.where) as conn:
                await conn.execute(_FETCHED.read_bytes())
        else:
            tool = Path(sys.executable).with_name("absurdctl")
            made = await asyncio.create_subprocess_exec(tool, "init", f"--ref={_VERSION}", "-d", self.where)
            if await made.wait():
                raise Unable("its tables are not in its package, and absurdctl could not fetch them")
        app = AsyncAbsurd(self.where)
        await app.create_queue("default")
        await app.close()
        async with await psycopg.AsyncConnection.connect(self.where) as conn:
            await conn.execute("create table business (id bigint primary key, note text)")

    async def open(self) -> None:
        self._conn = await psycopg.AsyncConnection.connect(self.where, autocommit=True)
        self._app = AsyncAbsurd(self._conn)

    async def close(self) -> None:
        await self._conn.close()

    async def publish(self, rows: list[Payload]) -> None:
        # It spawns one at a time; many in one transaction spare the commits.
        for start in range(0, len(rows), 1000):
            async with self._conn.transaction():
                for row in rows[start : start + 1000]:
                    await self._spawn(row)

    async def transact(self, row: Payload) -> None:
        async with self._conn.transaction():
            await self._conn.execute("insert into business (id, note) values (%s, 'x')", (row["id"],))
            await self._spawn(row)

    async def _spawn(self, row: Payload) -> None:
        await self._app.spawn("bench", row, queue="default")

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        app, options = AsyncAbsurd(self.where), dict(self.settings)
        steps = ("one", "two", "three") if options.pop("three_steps", False) else ()

        @app.register_task(name="bench")
        async def bench(params: Any, context: Any) -> None:
            async def step() -> int:
                return int(params["id"])

            for name in steps:
                await context.step(name, step)
            handle(params)

        working = asyncio.create_task(app.start_worker(**options))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        app.stop_worker()
        await working

    async def remaining(self) -> bool:
        return bool(await self._ask("select exists (select 1 from absurd.t_default where state <> 'completed')"))

    async def settled(self) -> dict[str, int]:
        done = "select count(*) from absurd.t_default where state = 'completed'"
        return {"settled": await self._ask(done), "twice": await self._ask(f"{done} and attempts > 1")}

    async def _ask(self, question: str) -> int:
        async with await psycopg.AsyncConnection.connect(self.where) as conn:
            row: Any = await (await conn.execute(question.encode())).fetchone()
            return row[0]  # type: ignore[no-any-return]


if __name__ == "__main__":
    serve(AbsurdPeer)
