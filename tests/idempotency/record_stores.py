"""Every storage of idempotency records, with a way to let time pass without waiting."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from redis import Redis

from holdfast import Holdfast
from holdfast.idempotency.records import Records, StoreRecords
from holdfast.idempotency.redis import RedisRecords
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.sessions import execute
from tests.servers.tables import empty

EVERYWHERE = ["sqlite", "postgres16", "postgres18", "redis"]


@dataclass
class RecordStore:
    """Records under test. `hf` is none in Redis."""

    kind: str
    records: Records
    pass_time: Callable[[timedelta], None]
    hf: Holdfast | None = None
    dsn: str = ""

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Rows that a separate connection reads; `{hf}` is the prefix of the tables."""
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.dsn.removeprefix("sqlite:///"), isolation_level=None)) as conn:
                return conn.execute(text.replace("{hf}", "holdfast_")).fetchall()
        return execute(self.dsn, text.replace("{hf}", "holdfast."))


@contextmanager
def open_record_store(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, database: Callable[[PostgresServer], str]
) -> Iterator[RecordStore]:
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        prefix = f"test:{uuid4()}"
        yield RecordStore(kind, RedisRecords(server.url, prefix), lambda by: _age_redis(server, prefix, by))
        return
    if kind == "sqlite":
        dsn = f"sqlite:///{tmp_path}/shop.db"
    else:
        dsn = database(request.getfixturevalue(kind))
    hf = Holdfast(dsn)
    place = RecordStore(kind, StoreRecords(hf), lambda by: None, hf, dsn)
    place.pass_time = lambda by: _age(place, by)
    try:
        yield place
    finally:
        hf.store.close_sync()
        if kind != "sqlite":
            empty(dsn)


def _age(place: RecordStore, by: timedelta) -> None:
    amount = f"interval '{by.total_seconds()} s'"
    if place.kind == "sqlite":
        amount = str(round(by.total_seconds() * 1000))
    place.sql(f"update {{hf}}idempotency_lease set lease_until = lease_until - {amount}")
    times = ("reserved_at", "lease_until", "completed_at", "expires_at")
    place.sql("update {hf}idempotency set " + ", ".join(f"{name} = {name} - {amount}" for name in times))


def _age_redis(server: RedisServer, prefix: str, by: timedelta) -> None:
    milliseconds = round(by.total_seconds() * 1000)
    with Redis.from_url(server.url) as redis:
        for name in redis.keys(f"{prefix}:*"):
            redis.hincrby(name, "lease_until", -milliseconds)
            redis.pexpire(name, max(0, redis.pttl(name) - milliseconds))
