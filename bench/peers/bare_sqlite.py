"""The bound on SQLite: a bare loop of Holdfast's own statements on one connection, with full synchronous commits.

It claims in one transaction and settles in another, fenced as the store does, and nothing else.
"""

import asyncio
import contextlib
import random
import sqlite3
import time
from datetime import timedelta
from typing import Any

import orjson

from bench.peers.protocol import Handle, Payload, Peer, batches, serve
from holdfast import Holdfast
from holdfast.core.drive import drive
from holdfast.core.identity import delivery_id, uuid7
from holdfast.stores.deliveries.claim import Claimed, Lane, claim
from holdfast.stores.dialect import Answer, Style
from holdfast.stores.operation import Query, Rows
from holdfast.stores.sqlite.dialect import SqliteDialect

_EVENT, _CONSUMER, _WORKER = "bench.happened", "bench0", "bare"
_LANE = Lane("default", _CONSUMER, 0, 1)
_ID, _FENCE, _PAYLOAD = (Claimed._fields.index(name) for name in ("id", "fence", "payload"))


class BareSqlite(Peer):
    """`settings`: `batch`, how many are claimed and settled at once."""

    packages = ("orjson",)

    def __init__(self, where: str, settings: dict[str, Any]) -> None:
        super().__init__(where, settings)
        self._batch = settings.get("batch", 500)
        self._path = where.removeprefix("sqlite:///")
        self._dialect = SqliteDialect()

    async def setup(self) -> None:
        hf = Holdfast(self.where)
        hf.consumer(_EVENT, name=_CONSUMER)(lambda payload: None)
        await hf.publish_many([], conn=None)
        await hf.close()

    async def open(self) -> None:
        self._db = self._connect()

    async def close(self) -> None:
        self._db.close()

    async def publish(self, rows: list[Payload]) -> None:
        for batch in batches(rows, 1000):
            now = time.time_ns() // 1_000_000
            ids = [uuid7(now, random.getrandbits(74)) for _ in batch]
            with _transaction(self._db):
                self._db.executemany(
                    "insert into holdfast_message (id, type, source, payload, headers, generation, occurred_at, sub_epoch) "
                    "values (?, ?, 'app', ?, '{}', 0, ?, 1)",
                    [(str(id), _EVENT, orjson.dumps(row).decode(), now) for id, row in zip(ids, batch, strict=True)],
                )
                self._db.executemany(
                    "insert into holdfast_delivery (id, message_id, consumer, queue, priority, generation, run_at) "
                    "values (?, ?, ?, 'default', 1, 0, ?)",
                    [(str(delivery_id(id, _CONSUMER)), str(id), _CONSUMER, now) for id in ids],
                )

    async def work(self, handle: Handle, stop: asyncio.Event) -> None:
        db = self._connect()
        while not stop.is_set():
            with _transaction(db):
                rows = self._run(db, next(claim([_LANE], _WORKER, timedelta(seconds=30), self._batch).start()))
            for row in rows:
                handle(orjson.loads(row[_PAYLOAD]))
            if rows:
                settlements = {"delivery_id": [row[_ID] for row in rows], "fence": [row[_FENCE] for row in rows]}
                with _transaction(db):
                    query = Query("settle_delivered", {"worker": _WORKER}, {"settlements": settlements})
                    if len(self._run(db, query)) != len(rows):
                        raise RuntimeError("a settle was lost")
            await asyncio.sleep(0 if rows else 0.001)
        db.close()

    def _run(self, db: sqlite3.Connection, query: Query) -> Rows:
        def run(statement: tuple[str, Any]) -> Answer:
            cursor = db.execute(*statement)
            return [column[0] for column in cursor.description or ()], cursor.fetchall()

        return drive(self._dialect.expand(query, Style.NAMED), run)

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self._path, isolation_level=None)
        db.execute("pragma synchronous = full")
        db.execute("pragma journal_mode = wal")
        return db

    async def remaining(self) -> bool:
        return bool(self._count("status in ('pending', 'in_flight')"))

    async def settled(self) -> dict[str, int]:
        done = "status = 'delivered'"
        return {"settled": self._count(done), "twice": self._count(f"{done} and attempts > 1")}

    def _count(self, condition: str) -> int:
        with contextlib.closing(self._connect()) as db:
            (count,) = db.execute(f"select count(*) from holdfast_delivery where {condition}").fetchone()
            return int(count)


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Any:
    db.execute("begin immediate")
    yield
    db.execute("commit")


if __name__ == "__main__":
    serve(BareSqlite)
