"""Faults of load: rows that cannot run, a full notification queue, conflicts of transactions, connections used up."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.core.change import Deliver
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import pause_consumer
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.postgres.store import PostgresStore
from tests.servers.postgres import PostgresServer
from tests.servers.sessions import execute
from tests.support.apps import MakeApp
from tests.support.builders import all_deliveries, claim_all, job, outcome, put, sql, until_one_waits
from tests.support.worker import all_of, eventually, query, statuses, working

pytestmark = pytest.mark.long

MANY = 10_000
COUNT = "select consumer, status, count(*), max(attempts) from {hf}delivery group by 1, 2 order by 1"
WORKER = "select id from {hf}worker where alive_until > now()"


async def test_ten_thousand_rows_that_cannot_run_here_do_not_hide_the_rest(make_app: MakeApp) -> None:
    """At the head of the same queue: of a paused consumer, and of one that only another process handles."""
    elsewhere, hf = make_app(), make_app()

    @elsewhere.job()
    async def foreign(n: int) -> None: ...

    @hf.job()
    async def paused(n: int) -> None: ...

    @hf.job()
    async def wanted(n: int) -> None: ...

    for one in (foreign, paused):
        await one.enqueue_many([(n,) for n in range(MANY)])
    await hf.store.run(pause_consumer("paused", "ada", None))
    await wanted.enqueue_many([(n,) for n in range(100)])
    async with working(hf):
        await eventually(lambda: _all(hf, "wanted", Status.DELIVERED, 100))
    assert await query(hf, COUNT) == [
        ("foreign", "pending", MANY, 0),
        ("paused", "pending", MANY, 0),
        ("wanted", "delivered", 100, 1),
    ]


@pytest.fixture
def small_queue() -> Iterator[str]:
    """A database on a server whose notification queue is as small as it can be."""
    with PostgresServer(18, settings={"max_notify_queue_pages": 64}) as server:
        store = PostgresStore(server.create_database("small_queue"))
        store.migrate()
        store.close_sync()
        yield server.dsn("small_queue")


async def test_with_a_full_notification_queue_publishes_commit_and_workers_poll(small_queue: str) -> None:
    hf = Holdfast(small_queue)

    @hf.job()
    async def work(n: int) -> None: ...

    with psycopg.connect(small_queue, autocommit=True) as listener, psycopg.connect(small_queue) as sender:
        sender.autocommit = True
        listener.execute("listen anything")
        listener.execute("begin")  # it reads nothing until its transaction ends, so nothing leaves the queue
        notify = "select pg_notify('anything', repeat('x', 7000) || g) from generate_series(1, 100) g"
        with pytest.raises(psycopg.OperationalError, match="too many notifications"):
            _repeat(sender, notify)
        async with working(hf):
            for n in range(20):
                await work.enqueue(n)
            await eventually(lambda: _all(hf, "work", Status.DELIVERED, 20))
        with pytest.raises(psycopg.OperationalError, match="too many notifications"):
            sender.execute(notify)
    await hf.close()


@pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)
@pytest.mark.parametrize("code", ["40001", "40P01"])
async def test_a_transaction_that_the_server_aborts_for_others_is_repeated(hf: Holdfast, code: str) -> None:
    """In each kind of transaction once: publish, claim, settle. The sequence keeps its value through the rollback."""
    done: list[int] = []

    @hf.job()
    async def work(n: int) -> None:
        done.append(n)

    await hf._runtime.registration.prepare()
    sql(hf.store, "create sequence {hf}aborted")
    sql(
        hf.store,
        "create function {hf}abort_once() returns trigger language plpgsql as $$ begin if "
        "nextval('holdfast.aborted') in (1, 3, 5) then raise exception 'once' using errcode = '" + code + "'; end if; "
        "return new; end $$",
    )
    try:
        sql(
            hf.store,
            "create trigger abort_once before insert or update on {hf}delivery for each row "
            "execute function {hf}abort_once()",
        )
        async with working(hf):
            await work.enqueue(1)
            await eventually(lambda: _all(hf, "work", Status.DELIVERED, 1))
        # Six attempts of three statements: each was aborted once.
        assert sql(hf.store, "select last_value from {hf}aborted") == [(6,)]
    finally:
        sql(hf.store, "drop trigger if exists abort_once on {hf}delivery")
        sql(hf.store, "drop function {hf}abort_once")
        sql(hf.store, "drop sequence {hf}aborted")
    assert done == [1]
    assert [one.attempts for one in await all_of(hf)] == [1]


async def test_a_settlement_that_is_the_victim_of_a_deadlock_is_repeated(postgres18_dsn: str) -> None:
    store = PostgresStore(postgres18_dsn)
    await put(store, job(), job())
    claims = await claim_all(store)
    first, second = (str(one.id) for one in sorted(claims, key=lambda one: one.id))
    before = execute(postgres18_dsn, "select deadlocks from pg_stat_database where datname = current_database()")
    with psycopg.connect(postgres18_dsn) as other:
        # The session that waits first is the victim, because this one looks for deadlocks much later.
        other.execute("set deadlock_timeout = '60s'")
        other.execute("select 1 from holdfast.delivery where id = %s for update", (second,))
        one_by_one = [outcome(one, Deliver()) for one in sorted(claims, key=lambda one: one.id)]
        settling = asyncio.create_task(store.run(settle("w1", one_by_one)))
        await asyncio.to_thread(until_one_waits, store)
        locking = threading.Thread(
            target=other.execute, args=("select 1 from holdfast.delivery where id = %s for update", (first,))
        )
        locking.start()
        await asyncio.to_thread(locking.join, 20)
        assert not locking.is_alive(), "the server aborts the settlement"
        other.rollback()
        assert await asyncio.wait_for(settling, 20) == {one.id for one in claims}
    after = execute(postgres18_dsn, "select deadlocks from pg_stat_database where datname = current_database()")
    for _ in range(100):
        if after != before:
            break
        await asyncio.sleep(0.1)
        after = execute(postgres18_dsn, "select deadlocks from pg_stat_database where datname = current_database()")
    assert after != before
    assert {one.status for one in await all_deliveries(store)} == {Status.DELIVERED}
    await store.close()


@pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)
@pytest.mark.parametrize("keyed", [False, True])
async def test_handlers_that_use_up_all_connections_stop_neither_the_lease_nor_settlements(
    hf: Holdfast, keyed: bool
) -> None:
    """Thirty publishes from handlers hang for two leases. A pool has ten connections; a keyed publish uses another one."""
    lease = timedelta(seconds=2)
    stuck = 0

    @hf.job()
    async def publishing(n: int) -> None:
        nonlocal stuck
        stuck += 1
        await hf.publish("order.placed", {"n": n}, conn=None, key=f"order:{n}" if keyed else None)

    @hf.job()
    async def plain(n: int) -> None: ...

    await publishing.enqueue_many([(n,) for n in range(30)])
    await plain.enqueue_many([(n,) for n in range(50)])
    with psycopg.connect(hf.dsn) as other:
        other.execute("lock table holdfast.message in share row exclusive mode")
        async with working(hf, lease=lease, concurrency=40):
            await eventually(lambda: stuck == 30)
            before = await query(hf, WORKER)
            await asyncio.sleep(2 * lease.total_seconds())
            assert await query(hf, WORKER) == before
            assert await query(hf, COUNT) == [("plain", "delivered", 50, 1), ("publishing", "in_flight", 30, 1)]
            other.rollback()
            await eventually(lambda: _all(hf, "publishing", Status.DELIVERED, 30))
    assert await query(hf, COUNT) == [("plain", "delivered", 50, 1), ("publishing", "delivered", 30, 1)]
    assert sql(hf.store, "select count(*) from {hf}message where type = 'order.placed'") == [(30,)]


PUBLISH = """
import resource, sys
from holdfast import Holdfast, PayloadTooLarge

megabytes = int(sys.argv[2])
hf = Holdfast(sys.argv[1])
hf.sync.publish("order.placed", {"text": "x" * (2**20 - 100)}, conn=None)
payload = {"text": "x" * (megabytes * 2**20)}
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
try:
    hf.sync.publish("order.placed", payload, conn=None)
except PayloadTooLarge as error:
    print("refused", error)
print("more", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 - before)
"""


@pytest.mark.parametrize("megabytes", [64, 300])
def test_a_payload_of_many_megabytes_is_refused_with_bounded_memory(dsn: str, megabytes: int) -> None:
    """One of one megabyte is stored. A larger one is written as JSON once, and neither copied nor sent."""
    done = subprocess.run(
        [sys.executable, "-c", PUBLISH, dsn, str(megabytes)], capture_output=True, text=True, timeout=60, check=True
    )
    refused, more = done.stdout.splitlines()
    assert refused.startswith("refused payload is too large")
    assert int(more.split()[1]) < 2.5 * megabytes


async def _all(hf: Holdfast, consumer: str, status: Status, number: int) -> bool:
    return await statuses(hf, consumer) == [status] * number


def _repeat(connection: psycopg.Connection, statement: str) -> None:
    for _ in range(1000):
        connection.execute(statement.encode())
