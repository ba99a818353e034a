"""A soak run: publishes, kills and stops workers, and does what operators do, until everything has ended."""

import asyncio
import math
import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.process import BaseProcess
from signal import SIGCONT, SIGSTOP
from uuid import UUID

from holdfast import Holdfast
from holdfast.core.errors import HoldfastError
from tests.flow import worker
from tests.flow.log import Database
from tests.flow.worker import Workers

KEYS = 8
_KEYED = [name for name in worker.PROMISES if name not in ("all_limited", "mail_a", "mail_b", "all_rated", "batched")]
_ACTIONS = {
    "kill": 9, "stop": 1, "pause_key": 3, "resume_key": 3, "replay": 3, "discard": 2, "cancel": 2, "hold_snapshot": 2,
    "pause_consumer": 1,
}  # fmt: skip


class Chaos:
    """One run with a seed. The order of the actions is repeatable; what they meet is not."""

    def __init__(self, dsn: str, seed: int, *, through: str | None = None) -> None:
        """With `through`, workers and publishers connect there: the address of a pooler before the database."""
        self.database = Database(dsn)
        self.dsn = through or dsn
        self.random = random.Random(seed)
        self._messages = random.Random(seed)
        self._actions = random.Random(seed)
        self.done: Counter[str] = Counter()
        self._workers = Workers(self.dsn)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, messages: int, kills: int) -> None:
        """Publishes so many messages, kills so many workers, and waits until every delivery has ended."""
        self.database.install()
        hf = worker.build(self.dsn)
        try:
            async with Workers(self.dsn) as self._workers:
                await self._workers.registered(self.database)
                await asyncio.gather(self._publish(hf, messages), self._act(hf, kills))
                await self._finish(hf)
        finally:
            for task in self._tasks:
                task.cancel()
            await hf.close()

    async def _publish(self, hf: Holdfast, messages: int) -> None:
        """Half of the messages are of one key. Each call commits before the next one begins."""
        number = 0
        while number < messages:
            size = min(messages - number, self._messages.choice((1, 5, 20)))
            batch = [
                (worker.EVENT, {"k": f"k{self._messages.choice((0, self._messages.randrange(KEYS)))}", "n": n})
                for n in range(number, number + size)
            ]
            await hf.publish_many(batch, conn=None)
            number += size
            await asyncio.sleep(self._messages.uniform(0, 0.05))

    async def _act(self, hf: Holdfast, kills: int) -> None:
        names, weights = list(_ACTIONS), list(_ACTIONS.values())
        while self.done["kill"] < kills:
            await asyncio.sleep(self._actions.uniform(0.05, 0.5))
            (name,) = self._actions.choices(names, weights)
            self.done[name] += 1
            with suppress(HoldfastError):  # the item has changed in the meantime
                await getattr(self, f"_{name}")(hf)

    async def _kill(self, hf: Holdfast) -> None:
        await asyncio.to_thread(self._workers.replace, self.random)

    async def _stop(self, hf: Holdfast) -> None:
        """Stops a worker for longer than its lease; on SQLite not inside a write, which would keep out all others."""
        victim = self.random.choice(self._workers.processes)
        assert victim.pid is not None
        os.kill(victim.pid, SIGSTOP)
        while self.database.on_sqlite and not await asyncio.to_thread(self._is_writable):
            os.kill(victim.pid, SIGCONT)
            await asyncio.sleep(0.01)
            os.kill(victim.pid, SIGSTOP)
        self._later(2 * worker.LEASE, lambda: self._continue(victim))

    def _continue(self, process: BaseProcess) -> None:
        if process.is_alive() and process.pid is not None:
            os.kill(process.pid, SIGCONT)

    def _is_writable(self) -> bool:
        with closing(self.database.connect()) as connection:
            connection.execute("pragma busy_timeout = 200")
            try:
                connection.execute("begin immediate")
            except sqlite3.OperationalError:
                return False
            connection.execute("rollback")
            return True

    async def _pause_key(self, hf: Holdfast) -> None:
        await hf.ops.pause_key(self.random.choice(_KEYED), self._key(), actor="ada", force=True)

    async def _resume_key(self, hf: Holdfast) -> None:
        paused = self.database.sql("select consumer, flow_key from {hf}flow_pause order by 1, 2")
        if paused:
            await hf.ops.resume_key(*self.random.choice(paused), actor="ada")

    async def _replay(self, hf: Holdfast) -> None:
        if ids := self._some("status = 'failed' and discarded_at is null"):
            await hf.ops.replay(ids, actor="ada", reason="fixed")

    async def _discard(self, hf: Holdfast) -> None:
        if ids := self._some("status = 'failed' and discarded_at is null"):
            await hf.ops.discard(ids, actor="ada", reason="hopeless")

    async def _cancel(self, hf: Holdfast) -> None:
        if ids := self._some("status in ('pending', 'in_flight')"):
            await hf.ops.cancel(ids, actor="ada", reason="not needed")

    async def _hold_snapshot(self, hf: Holdfast) -> None:
        """Holds an old snapshot for a while: dead rows stay, and counting must not depend on them."""
        connection = self.database.connect()
        connection.execute("begin" if self.database.on_sqlite else "begin isolation level repeatable read")
        connection.execute(f"select count(*) from {self.database.prefix}delivery").fetchone()
        self._later(self.random.uniform(1, 3), connection.close)

    async def _pause_consumer(self, hf: Holdfast) -> None:
        name = self.random.choice(list(worker.PROMISES))
        await hf.ops.pause_consumer(name, actor="ada")
        await asyncio.sleep(0.3)
        await hf.ops.resume_consumer(name, actor="ada")

    async def _finish(self, hf: Holdfast, patience: float = 60) -> None:
        """Resumes every key, and replays or discards every dead letter, until nothing is left.

        It fails if nothing more ended for so many seconds: how long all of it takes depends on the machine.
        """
        least, deadline = math.inf, 0.0
        while True:
            await self._resume_key(hf)
            dead = self._some("status = 'failed' and discarded_at is null", 50)
            if dead:
                await (hf.ops.replay if self.random.random() < 0.5 else hf.ops.discard)(dead, actor="ada", reason="end")
            open = "status in ('pending', 'in_flight') or (status = 'failed' and discarded_at is null)"
            ((left,),) = self.database.sql(f"select count(*) from {{hf}}delivery where {open}")
            if not left:
                return
            if left < least:
                least, deadline = left, time.monotonic() + patience
            assert time.monotonic() < deadline, self._left(open)
            await asyncio.sleep(0.1)

    def _left(self, where: str) -> str:
        rows = self.database.sql(
            f"select consumer, flow_key, status, suspect, count(*), min(run_at) from {{hf}}delivery where {where} "
            "group by 1, 2, 3, 4 order by 5 desc limit 10"
        )
        return f"deliveries have not ended: {rows}"

    def _some(self, where: str, most: int = 3) -> list[UUID]:
        rows = self.database.sql(f"select id from {{hf}}delivery where {where} order by id limit 500")
        ids = [UUID(str(id)) for (id,) in rows]
        return self.random.sample(ids, min(len(ids), most))

    def _key(self) -> str:
        return f"k{self.random.randrange(KEYS)}"

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        async def wait() -> None:
            try:
                await asyncio.sleep(seconds)
            finally:
                call()

        task = asyncio.create_task(wait())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
