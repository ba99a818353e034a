"""Notifying listeners of work: rarely, and never for the last time before the last commit."""

import asyncio
import time
from collections.abc import Awaitable, Callable

import psycopg
import pytest

from holdfast.stores.postgres.store import PostgresStore

Burst = Callable[[PostgresStore], Awaitable[None]]
BURST = 50
SECONDS = 0.3


async def _hints(store: PostgresStore) -> None:
    for _ in range(BURST):
        await store.hint()


async def _at_once(store: PostgresStore) -> None:
    await asyncio.gather(*(store.hint() for _ in range(BURST)))


async def _blocking(store: PostgresStore) -> None:
    for _ in range(BURST):
        store.hint_sync()


@pytest.mark.parametrize("burst", [_hints, _at_once, _blocking])
async def test_a_burst_of_commits_is_followed_by_a_hint_and_makes_few(
    postgres_store: PostgresStore, burst: Burst
) -> None:
    """A hint that is left out because one went out a moment ago would leave the last commit to the next poll."""
    with psycopg.connect(postgres_store.conninfo, autocommit=True) as listener:
        listener.execute(f'listen "{postgres_store.channel}"'.encode())
        started = time.monotonic()
        await burst(postgres_store)
        await asyncio.sleep(0.02)
        most = 1 + (time.monotonic() - started) / 0.01
        sent = len(list(listener.notifies(timeout=SECONDS)))
    assert 2 <= sent <= most


async def test_the_last_of_two_hints_is_sent_after_it_was_asked_for(postgres_store: PostgresStore) -> None:
    with psycopg.connect(postgres_store.conninfo, autocommit=True) as listener:
        listener.execute(f'listen "{postgres_store.channel}"'.encode())
        await postgres_store.hint()
        first = len(list(listener.notifies(timeout=0.1, stop_after=1)))
        await postgres_store.hint()
        assert first == len(list(listener.notifies(timeout=SECONDS))) == 1


async def test_one_hint_is_under_way_at_a_time_with_a_slow_server(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections are for publishers; what was requested in the meantime is sent once afterwards."""
    monkeypatch.setattr("holdfast.stores.postgres.notifier.HINT", "select pg_sleep(0.4), pg_notify(%s, '')")
    with psycopg.connect(postgres_store.conninfo, autocommit=True) as listener:
        listener.execute(f'listen "{postgres_store.channel}"'.encode())
        hints = []
        for _ in range(8):
            hints.append(asyncio.create_task(postgres_store.hint()))
            await asyncio.sleep(0.011)
        await asyncio.gather(*hints)
        ((most,),) = listener.execute(
            "select count(*) from pg_stat_activity where query like '%pg_sleep%pg_notify%' and pid <> pg_backend_pid()"
        )
        sent = len(list(listener.notifies(timeout=SECONDS)))
    assert (most, sent) == (1, 2)


async def test_what_a_hint_asks_of_its_transaction_ends_with_it(postgres_store: PostgresStore) -> None:
    """It does not wait for the disk: with the server the listeners are gone too. The next on its connection does."""
    await postgres_store.hint()
    async with postgres_store._publish_pool.connection() as used:
        cursor = await used.execute("show synchronous_commit")
        assert await cursor.fetchone() == ("on",)
