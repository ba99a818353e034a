"""Small publishes run as prepared statements without a cursor of the driver."""

import asyncio
import cProfile
import pstats
from datetime import UTC, datetime, timedelta
from enum import Enum, IntEnum

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast import Holdfast
from holdfast.core.errors import StoreTimeout
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import Published, publish_single
from holdfast.stores.operation import Rows
from holdfast.stores.postgres.prepared_statement import PreparedPsycopg
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries.query import messages
from tests.support.builders import message, put, register_consumers

PUBLISHES = 300
MOST_CALLS = 320
"""304 when it was written, on the event loop of the standard library; 550 through a cursor of the driver."""


class Kind(str, Enum):  # noqa: UP042
    """As names of events are declared before Python 3.11."""

    PLACED = "order.placed"


class Number(IntEnum):
    ONE = 1


class Place(str):
    """A text of another library, for example one that is safe in HTML."""

    __slots__ = ()


async def known(store: PostgresStore) -> Fanout:
    """The subscriptions, as a producer keeps them after its first publish."""
    await register_consumers(store, {"mail": ["order.*"]})
    fanout = Fanout()
    await put(store, message("order.placed"), fanout=fanout)
    return fanout


async def send(store: PostgresStore, fanout: Fanout, count: int = 1) -> list[Published]:
    single = publish_single([message(payload={"n": n}) for n in range(count)], fanout)
    assert single is not None
    stored = await store.run(single)
    assert stored is not None
    return stored


async def stored(store: PostgresStore) -> int:
    return len(await store.run(messages(limit=100)))


@pytest.mark.parametrize("count", [1, 3])
async def test_a_publish_works_after_its_statement_was_removed(postgres_store: PostgresStore, count: int) -> None:
    """The driver removes all statements of a session when it rolls back, and an operator may do so too."""
    fanout = await known(postgres_store)
    await send(postgres_store, fanout, count)
    async with postgres_store._publish_pool.connection() as connection:
        assert connection.prepared_calls
        await connection.execute("deallocate all", prepare=False)
    await send(postgres_store, fanout, count)
    assert await stored(postgres_store) == 1 + 2 * count


async def test_a_publish_works_after_a_caller_was_cancelled_while_it_prepared_the_statement(
    postgres_store: PostgresStore,
) -> None:
    """The statement exists in the session and is not noted."""
    fanout = await known(postgres_store)
    await send(postgres_store, fanout)
    async with postgres_store._publish_pool.connection() as connection:
        assert connection.prepared_calls
        connection.prepared_calls.clear()
    await send(postgres_store, fanout)
    assert await stored(postgres_store) == 3


async def test_a_cancelled_publish_has_ended_and_its_connection_is_used_again(postgres_store: PostgresStore) -> None:
    """It waits for a lock when it is cancelled: afterwards it stores nothing."""
    fanout = await known(postgres_store)
    await send(postgres_store, fanout)
    with psycopg.connect(postgres_store.conninfo) as locking:
        locking.execute(f"lock table {postgres_store.dialect.prefix}delivery".encode())
        publishing = asyncio.create_task(send(postgres_store, fanout))
        await asyncio.sleep(0.2)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
    await send(postgres_store, fanout)
    assert await stored(postgres_store) == 3


async def test_a_time_limit_of_the_server_ends_a_publish(postgres_store: PostgresStore) -> None:
    fanout = await known(postgres_store)
    await send(postgres_store, fanout)
    async with postgres_store._publish_pool.connection() as connection:
        await connection.execute("set statement_timeout = '100ms'")
    with psycopg.connect(postgres_store.conninfo) as locking:
        locking.execute(f"lock table {postgres_store.dialect.prefix}delivery".encode())
        with pytest.raises(StoreTimeout, match="statement timeout"):
            await send(postgres_store, fanout)
    await send(postgres_store, fanout)
    assert await stored(postgres_store) == 3


@pytest.mark.parametrize(
    "value", ['it\'s \\ "quoted", {1,2} and long ' + "x" * 100_000, "", "ü€😀", None, True, 2**62, -1]
)
async def test_a_value_arrives_as_it_is(postgres_store: PostgresStore, value: object) -> None:
    type = {str: "text", bool: "boolean", int: "bigint"}.get(value.__class__, "text")
    assert await _echo(postgres_store, f"select $1::{type}, $1::{type}", [value]) == [(value, value)]


@pytest.mark.parametrize("kind", [Kind.PLACED, Place("order.placed"), "order.placed"])
async def test_a_type_may_be_a_subclass_of_text(postgres_store: PostgresStore, kind: str) -> None:
    fanout = await known(postgres_store)
    for count in (1, 3):
        single = publish_single([message(kind) for _ in range(count)], fanout)
        assert single is not None
        assert await postgres_store.run(single)
    assert {one.type for one in await postgres_store.run(messages())} == {"order.placed"}


async def test_values_of_subclasses_arrive_as_their_values(postgres_store: PostgresStore) -> None:
    sent = [Kind.PLACED, Number.ONE, Place("here"), timedelta(days=1, microseconds=5), datetime(2026, 1, 2, tzinfo=UTC)]
    text = "select $1::text, $2::bigint, $3::text, $4::interval, $5::timestamptz"
    assert await _echo(postgres_store, text, [*sent]) == [("order.placed", 1, "here", *sent[3:])]
    with pytest.raises(TypeError, match="object"):
        await _echo(postgres_store, "select $1::text", [object()])


async def test_a_text_with_nul_is_refused_like_by_the_driver(postgres_store: PostgresStore) -> None:
    """As a C string it would be stored without its end."""
    with pytest.raises(psycopg.DataError, match="NUL"):
        await _echo(postgres_store, "select $1::text", ["a\0b"])


async def test_behind_a_pooler_the_driver_publishes(postgres_store: PostgresStore) -> None:
    """There a session ends with its transaction, and a prepared statement with it."""
    fanout = await known(postgres_store)
    await send(postgres_store, fanout)
    async with postgres_store._publish_pool.connection() as connection:
        connection.prepared_calls, connection.prepare_threshold = None, None
        await connection.execute("deallocate all")
    await send(postgres_store, fanout)
    await postgres_store.hint()
    async with postgres_store._publish_pool.connection() as connection:
        cursor = await connection.execute("select count(*) from pg_prepared_statements")
        assert await cursor.fetchone() == (0,)


async def test_one_publish_costs_a_bounded_number_of_calls(
    postgres_store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unlike a time, the count is the same on every machine, if no hint is sent in between."""
    monkeypatch.setattr("holdfast.stores.postgres.notifier._EVERY", 3600.0)
    at = conninfo_to_dict(postgres_store.conninfo)
    hf = Holdfast(f"postgresql://{at['user']}@{at['host']}:{at['port']}/{at['dbname']}")

    @hf.consumer("order.placed", name="mail")
    async def mail(payload: dict[str, object]) -> None: ...

    async def publish() -> None:
        for _ in range(PUBLISHES):
            await hf.publish("order.placed", {"n": 1}, conn=None)

    await publish()
    profile = cProfile.Profile()
    with profile:
        await publish()
    await hf.close()
    calls: int = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    assert calls / PUBLISHES < MOST_CALLS


async def _echo(store: PostgresStore, text: str, values: list[object]) -> Rows:
    async with store._publish_pool.connection() as connection:
        assert connection.prepared_calls is not None
        _, rows = await PreparedPsycopg(connection, connection.prepared_calls).run(text, values)
        return rows
