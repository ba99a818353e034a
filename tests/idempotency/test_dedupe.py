"""The deduplication window, in memory, in SQL and in Redis: the same tests for each."""

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import Holdfast, Snooze, WorkerOptions
from holdfast.core.errors import StoreUnavailable
from holdfast.dedupe import Dedupe, MemoryDedupe, RedisDedupe, StoreDedupe
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

FIVE_MINUTES = timedelta(minutes=5)


@pytest.fixture(scope="module")
def redis_server():
    with RedisServer() as server:
        yield server


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "sqlite", "postgres16", "postgres18", "redis"])
async def window(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[Dedupe, Callable[[], object]]]:
    """A window, and a way to let its keys' time pass without waiting."""
    match request.param:
        case "memory":
            clock = Clock()
            yield MemoryDedupe(clock=clock), lambda: setattr(clock, "now", clock.now + 301)
        case "redis":
            server: RedisServer = request.getfixturevalue("redis_server")
            kept = RedisDedupe(server.url, prefix=f"test:{uuid4()}")
            yield kept, lambda: _expire_redis(server)
            await kept.close()
        case "sqlite":
            store = SqliteStore(tmp_path / "window.db")
            store.migrate()
            yield (
                StoreDedupe(store),
                lambda: _moved_back(store, "update holdfast_seen set expires_at = expires_at - 301000"),
            )
            await store.close()
        case name:
            postgres: PostgresServer = request.getfixturevalue(name)
            database = f"window_{uuid4().hex}"
            kept_store = PostgresStore(postgres.create_database(database))
            kept_store.migrate()
            text = "update holdfast.seen set expires_at = expires_at - interval '301 s'"
            yield StoreDedupe(kept_store), lambda: postgres.execute(text, database=database)
            await kept_store.close()
            postgres.drop_database(database)


def _moved_back(store: SqliteStore, text: str) -> None:
    import sqlite3

    with sqlite3.connect(store.path) as conn:
        conn.execute(text)
    conn.close()


def _expire_redis(server: RedisServer) -> None:
    from redis import Redis

    with Redis.from_url(server.url) as redis:
        for name in redis.keys("*"):
            assert 0 < redis.pttl(name) <= 300_000  # Redis removes it
            redis.pexpire(name, 0)


async def test_a_recorded_key_is_seen_until_its_window_is_over(window: tuple[Dedupe, Callable[[], object]]) -> None:
    kept, let_time_pass = window
    assert not await kept.seen("mail", "order:1")
    await kept.record("mail", "order:1", FIVE_MINUTES)
    assert await kept.seen("mail", "order:1")
    let_time_pass()
    assert not await kept.seen("mail", "order:1")


async def test_keys_are_kept_apart_by_consumer(window: tuple[Dedupe, Callable[[], object]]) -> None:
    kept, _ = window
    await kept.record("mail", "order:1", FIVE_MINUTES)
    assert not await kept.seen("stock", "order:1")
    assert not await kept.seen("mail", "order:2")


async def test_recording_again_restarts_the_window(window: tuple[Dedupe, Callable[[], object]]) -> None:
    kept, let_time_pass = window
    await kept.record("mail", "order:1", FIVE_MINUTES)
    let_time_pass()
    await kept.record("mail", "order:1", FIVE_MINUTES)
    assert await kept.seen("mail", "order:1")


async def test_memory_is_bounded_and_the_oldest_keys_go_first() -> None:
    kept = MemoryDedupe(max_keys=2)
    for key in ("a", "b", "c"):
        await kept.record("mail", key, FIVE_MINUTES)
    assert [await kept.seen("mail", key) for key in ("a", "b", "c")] == [False, True, True]


async def test_redis_that_is_away_is_an_unavailable_store_not_a_foreign_error() -> None:
    kept = RedisDedupe("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        await kept.seen("mail", "order:1")
    await kept.close()


async def test_a_second_run_within_the_window_is_skipped_and_counts_as_done(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path}/app.db", dedupe=MemoryDedupe())
    runs: list[int] = []

    @hf.consumer("order.placed", dedupe=True)
    async def mail(payload: dict[str, int]) -> None:
        runs.append(payload["id"])

    await hf.publish("order.placed", {"id": 1}, conn=None)
    await hf.work(WorkerOptions(until_idle=True))
    # As if the acknowledgement had been lost: the row is pending again, the effect is done.
    with closing(sqlite3.connect(tmp_path / "app.db")) as db, db:
        db.execute("update holdfast_delivery set status = 'pending', completed_at = null")
    await hf.work(WorkerOptions(until_idle=True))
    assert runs == [1]
    await hf.close()


async def test_a_run_that_failed_or_snoozed_is_not_recorded(tmp_path: Path) -> None:
    kept = MemoryDedupe()
    hf = Holdfast(f"sqlite:///{tmp_path}/app.db", dedupe=kept)
    runs: list[int] = []

    @hf.consumer("order.placed", dedupe="10m")
    async def mail(payload: dict[str, int]) -> Snooze | None:
        runs.append(payload["id"])
        if len(runs) == 1:
            return Snooze(0)
        if len(runs) == 2:
            raise ConnectionError("mail server is down")
        return None

    await hf.publish("order.placed", {"id": 1}, conn=None)
    await hf.work(WorkerOptions(until_idle=True))
    assert runs == [1, 1, 1]
    await hf.close()


async def test_a_window_that_cannot_record_does_not_undo_a_success(tmp_path: Path) -> None:
    class Broken(MemoryDedupe):
        async def record(self, consumer: str, key: str, window: timedelta) -> None:
            raise StoreUnavailable("redis", "gone")

    hf = Holdfast(f"sqlite:///{tmp_path}/app.db", dedupe=Broken())
    runs: list[int] = []

    @hf.consumer("order.placed", dedupe=True)
    async def mail(payload: dict[str, int]) -> None:
        runs.append(payload["id"])

    await hf.publish("order.placed", {"id": 1}, conn=None)
    await hf.work(WorkerOptions(until_idle=True))
    assert runs == [1]
    await hf.close()
