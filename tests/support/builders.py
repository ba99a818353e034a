"""Small pieces that the tests of the stores are built from."""

import random
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import timedelta
from uuid import UUID

import psycopg

from holdfast.core.change import Change
from holdfast.core.delivery import Claim, Delivery
from holdfast.core.failures.report import ErrorReport, report
from holdfast.core.identity import uuid7
from holdfast.core.message import Address, NewMessage, new_message
from holdfast.core.retry import RetryPolicy
from holdfast.stores.deliveries.claim import Claimed, Lane, claim, lanes
from holdfast.stores.deliveries.settle import Settlement, settle
from holdfast.stores.deliveries.worker import start_worker
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import Published, publish
from holdfast.stores.messages.registry import Declaration, EventSubscription, catch_up, register
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter, deliveries
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.sessions import execute

LEASE = timedelta(seconds=30)
SECOND = timedelta(seconds=1)

# Every column that holds a time, so that a test can move stored times back: the database's clock still decides.
_TIMES = {
    "delivery": [
        "run_at",
        "created_at",
        "claimed_at",
        "completed_at",
        "lease_until",
        "first_failed_at",
        "discarded_at",
    ],
    "worker": ["started_at", "alive_until"],
    "message": ["occurred_at"],
    "consumer": ["registered_at", "paused_at", "blocked_until", "blocked_at"],
    "alert": ["told_at"],
    "run": ["started_at", "completed_at"],
    "result": ["stored_at", "expires_at"],
    "job_group": ["created_at", "cancelled_at"],
}


def fresh_id() -> UUID:
    return uuid7(time.time_ns() // 1_000_000, random.getrandbits(74))


def message(
    type: str = "order.placed",
    payload: object = None,
    *,
    source: str = "shop",
    key: str | None = None,
    generation: int = 0,
    headers: Mapping[str, object] | None = None,
    addressed: Sequence[Address] = (),
) -> NewMessage:
    """An event with a fresh id."""
    return new_message(
        id=fresh_id(),
        type=type,
        source=source,
        payload={"n": 1} if payload is None else payload,
        key=key,
        generation=generation,
        headers=headers,
        addressed=addressed,
    )


def sibling_of(one: NewMessage) -> NewMessage:
    """Another event whose id differs in the last bit: made in the same millisecond, and a neighbour in every index."""
    return one._replace(id=UUID(int=one.id.int ^ 1))


def job(
    consumer: str = "mail",
    payload: object = None,
    *,
    key: str | None = None,
    generation: int = 0,
    queue: str = "default",
    priority: int = 1,
    delay: timedelta | None = None,
    max_attempts: int | None = None,
    retry: RetryPolicy | None = None,
    unique: str | None = None,
    source: str = "shop",
) -> NewMessage:
    """A message addressed to one consumer."""
    address = Address(
        consumer=consumer,
        queue=queue,
        priority=priority,
        delay=delay,
        max_attempts=max_attempts,
        retry=retry,
        unique=unique,
    )
    made = message(f"job.{consumer}", payload, source=source, key=key, generation=generation, addressed=[address])
    return made if key is None else made._replace(key_scope=made.type)


async def put(store: Store, *messages: NewMessage, fanout: Fanout | None = None) -> list[Published]:
    """Publishes messages in a transaction of the store's own."""
    return await store.run(publish(messages, fanout or Fanout()))


async def register_consumers(
    store: Store,
    patterns: Mapping[str, Sequence[str]],
    *,
    queue: str = "default",
    priority: int = 1,
    retry: RetryPolicy | None = None,
    generation: int = 0,
    from_start: bool = True,
) -> bool:
    """Registers consumers by name with the patterns they subscribe to."""
    declared = [Declaration(name, queue, priority, retry or RetryPolicy.exponential()) for name in patterns]
    wished = [EventSubscription(pattern, name, from_start) for name, all in patterns.items() for pattern in all]
    return await store.run(register(declared, wished, generation))


async def catch_up_fully(store: Store) -> int:
    """Runs `catch_up` until nothing is left to look at; how many deliveries it added."""
    added = 0
    while True:
        some, more = await store.run(catch_up())
        added += some
        if not more:
            return added


async def start(
    store: Store, worker: str, consumers: Sequence[str], generation: int = 0, queues: Sequence[str] = ("default",)
) -> None:
    """Announces a living worker."""
    await store.run(start_worker(worker, generation, queues, consumers, LEASE))


async def claim_all(
    store: Store,
    worker: str = "w1",
    *,
    generation: int = 0,
    consumers: Sequence[str] | None = None,
    limit: int = 500,
    suspects: bool = False,
) -> list[Claimed]:
    """Claims what a worker of this generation may have, for the given consumers or for all that have deliveries."""
    if consumers is None:
        consumers = sorted({d.consumer for d in await all_deliveries(store)})
    found = await store.run(lanes(consumers, generation, suspects=suspects))
    return await claim_lanes(store, found, worker, limit=limit, suspects=suspects)


async def claim_lanes(
    store: Store, found: Sequence[Lane], worker: str = "w1", *, limit: int = 500, suspects: bool = False
) -> list[Claimed]:
    return await store.run(claim(found, worker, LEASE, limit, suspects=suspects))


async def claim_one(store: Store, worker: str = "w1", **address: object) -> Claimed:
    """Publishes one job and claims it."""
    await put(store, job(**address))  # type: ignore[arg-type]
    (claimed,) = await claim_all(store, worker)
    return claimed


def claim_of(claimed: Claimed, worker: str = "w1") -> Claim:
    return Claim(claimed.id, worker, claimed.fence)


def outcome(claimed: Claimed, change: Change, *, error: ErrorReport | None = None, **more: object) -> Settlement:
    """A settlement of this claim; the outcome's name follows from the change unless it is given."""
    more.setdefault("outcome", change.name if error is None else "failed")
    return Settlement(delivery_id=claimed.id, fence=claimed.fence, change=change, error=error, **more)  # type: ignore[arg-type]


async def finish(
    store: Store,
    claimed: Claimed,
    change: Change,
    worker: str = "w1",
    *,
    error: ErrorReport | None = None,
    **more: object,
) -> bool:
    """Settles one claim; false when it was lost."""
    settled = await store.run(settle(worker, [outcome(claimed, change, error=error, **more)]))
    return claimed.id in settled


def failure(text: str = "boom", kind: type[Exception] = RuntimeError) -> ErrorReport:
    """The report of an exception that was really raised."""
    try:
        raise kind(text)
    except kind as error:
        return report(error)


async def all_deliveries(store: Store, wanted: Filter | None = None) -> list[Delivery]:
    """Up to a thousand deliveries, oldest first."""
    listed = await store.run(deliveries(wanted or Filter(), limit=1000))
    return [found.delivery for found in reversed(listed)]


async def delivery(store: Store, id: UUID) -> Delivery:
    (found,) = await all_deliveries(store, Filter(ids=(id,)))
    return found


def sql(store: Store, text: str) -> list[tuple[object, ...]]:
    """Runs one statement of the test's own, committed, behind the store's back; `{hf}` is its prefix."""
    text = text.replace("{hf}", store.dialect.prefix)  # type: ignore[attr-defined]
    if isinstance(store, PostgresStore):
        return execute(store.conninfo, text)
    assert isinstance(store, SqliteStore)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("pragma busy_timeout = 10000")
        return connection.execute(text).fetchall()


def age(store: Store, by: timedelta, *tables: str) -> None:
    """Moves the stored times of these tables (all of them by default) back, as if `by` had passed."""
    amount = f"interval '{by.total_seconds()} s'"
    if isinstance(store, SqliteStore):
        amount = str(round(by.total_seconds() * 1000))
    for table in tables or _TIMES:
        text = f"update {{hf}}{table} set " + ", ".join(f"{c} = {c} - {amount}" for c in _TIMES[table])
        try:
            sql(store, text)
        except psycopg.errors.DeadlockDetected:  # a worker locks the same rows in another order
            sql(store, text)


def expire(store: Store) -> None:
    """Lets every lease run out, of deliveries and of workers."""
    age(store, LEASE + SECOND, "delivery", "worker")


def until_one_waits(store: PostgresStore, number: int = 1) -> None:
    """Returns when some session of the database waits for a lock, or so many."""
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    deadline = time.monotonic() + 8
    while len(sql(store, waiting)) < number:
        assert time.monotonic() < deadline, "no connection waits for a lock"
