"""A worker's lease: it survives busy handlers, and when it cannot be known to hold the handlers are stopped in time."""

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Holdfast
from holdfast.core.delivery import Status
from holdfast.engine.worker.lease import Lease
from holdfast.stores.deliveries.worker import start_worker, workers
from tests.engine.programs.proxy import Proxy
from tests.servers.postgres import PostgresServer
from tests.support.apps import MakeApp
from tests.support.builders import age, sql
from tests.support.worker import Log, eventually, logged, only, options, query, statuses, wait_for, working

LEASE = timedelta(seconds=1)


@asynccontextmanager
async def working_elsewhere(hf: Holdfast) -> AsyncIterator[None]:
    """A worker in a separate thread and loop, so that it continues while this loop is blocked."""
    stop = threading.Event()

    async def work() -> None:
        over = asyncio.Event()
        task = asyncio.create_task(hf.work(options(lease=LEASE), stop=over))
        await asyncio.to_thread(stop.wait)
        over.set()
        await task
        await hf.close()

    thread = threading.Thread(target=lambda: asyncio.run(work()))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        await asyncio.to_thread(thread.join)


async def test_a_handler_that_keeps_the_loop_busy_keeps_its_lease(hf: Holdfast, make_app: MakeApp, log: Log) -> None:
    """Longer than two leases, and another worker is there all the time to take over what looks dead."""
    attempts: list[int] = []

    @hf.job()
    async def crunch(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        time.sleep(2.5)  # noqa: ASYNC251

    await crunch.enqueue()
    async with working_elsewhere(make_app()):
        await eventually(lambda: hf.store.run(workers()))
        async with working(hf, lease=LEASE):
            await eventually(lambda: _delivered(hf))
    assert attempts == [1]
    assert logged(log, "lease expired") == []
    assert logged(log, "worker lease lost") == []


class Patient:
    """A handler that waits until it is allowed to end; cut off, it says so."""

    def __init__(self, hf: Holdfast) -> None:
        self.started, self.go = asyncio.Event(), asyncio.Event()
        self.attempts: list[int] = []
        self.cut_off: list[datetime] = []
        self.job = hf.job(name="patient")(self._run)

    async def _run(self, ctx: Context) -> None:
        self.attempts.append(ctx.attempt)
        self.started.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cut_off.append(datetime.now(UTC))
            raise


@contextmanager
def write_locked(dsn: str) -> Iterator[None]:
    """No process can write to the file during this: a renewal does not fail, it hangs."""
    with closing(sqlite3.connect(dsn.removeprefix("sqlite:///"), isolation_level=None)) as db:
        db.execute("begin immediate")
        yield
        db.execute("rollback")


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_a_renewal_that_hangs_stops_the_handlers_before_the_lease_is_over(
    hf: Holdfast, dsn: str, log: Log
) -> None:
    patient = Patient(hf)
    await patient.job.enqueue()
    async with working(hf, lease=LEASE):
        await wait_for(patient.started)
        patient.started.clear()
        (before,) = await hf.store.run(workers())
        with write_locked(dsn):
            await eventually(lambda: patient.cut_off)
        assert patient.cut_off[0] < before.alive_until
        patient.go.set()
        await eventually(lambda: _delivered(hf))
    assert logged(log, "worker lease lost")
    assert len({line["worker"] for line in logged(log, "worker started")}) > 1


@pytest.mark.parametrize("fault", ["silent", "refused"])
async def test_a_lease_thread_without_a_store_stops_the_handlers_and_a_new_life_begins(
    postgres18: PostgresServer, postgres18_dsn: str, log: Log, fault: str
) -> None:
    """Its own connection is dead while the others are well: the claims are given up, and taken up again."""
    with Proxy(postgres18) as proxy:
        hf = Holdfast(proxy.dsn(postgres18_dsn))
        patient = Patient(hf)
        await patient.job.enqueue()
        async with working(hf, lease=LEASE):
            await wait_for(patient.started)
            patient.started.clear()
            with proxy.silent("holdfast-lease") if fault == "silent" else trigger_on_workers(hf):
                (before,) = await hf.store.run(workers())
                await eventually(lambda: patient.cut_off)
                assert patient.cut_off[0] < before.alive_until
            await wait_for(patient.started)
            patient.go.set()
            await eventually(lambda: _delivered(hf))
        await hf.close()
    assert set(patient.attempts) == {1}
    assert len({line["worker"] for line in logged(log, "worker started")}) > 1


@contextmanager
def trigger_on_workers(hf: Holdfast) -> Iterator[None]:
    """Renewing fails with an unexpected error."""
    if hf.store.dialect.name == "sqlite":
        sql(hf.store, "create trigger no before update on {hf}worker begin select raise(abort, 'no'); end")
        yield
        sql(hf.store, "drop trigger no")
        return
    sql(hf.store, "create function {hf}no() returns trigger language plpgsql as $$ begin raise 'no'; end $$")
    sql(hf.store, "create trigger no before update on {hf}worker for each row execute function {hf}no()")
    try:
        yield
    finally:
        sql(hf.store, "drop trigger no on {hf}worker")
        sql(hf.store, "drop function {hf}no")


async def test_an_unexpected_error_does_not_end_the_renewal(hf: Holdfast, log: Log) -> None:
    """A thread that died of it would leave a worker that works without a lease."""
    patient = Patient(hf)
    await patient.job.enqueue()
    async with working(hf, lease=LEASE):
        await wait_for(patient.started)
        with trigger_on_workers(hf):
            await eventually(lambda: logged(log, "lease renewal failed"))
        await eventually(lambda: _alive(hf))
        patient.go.set()
        await eventually(lambda: _delivered(hf))
    assert patient.attempts == [1]


async def test_the_first_renewal_after_failures_is_logged_once(hf: Holdfast, log: Log) -> None:
    await hf._runtime.registration.prepare()
    await hf.store.run(start_worker("w1", 0, [], [], timedelta(minutes=5)))
    lease = Lease(hf.store, "w1", timedelta(minutes=5), lambda: None)
    await asyncio.to_thread(lease.renew)
    with trigger_on_workers(hf):
        for _ in range(2):
            await asyncio.to_thread(lease.renew)
    assert logged(log, "lease renewal resumed") == []
    for _ in range(2):
        await asyncio.to_thread(lease.renew)
    assert len(logged(log, "lease renewal failed")) == 2
    assert [line["worker"] for line in logged(log, "lease renewal resumed")] == ["w1"]


async def test_a_worker_whose_row_is_gone_stops_its_handlers_and_registers_again(hf: Holdfast, log: Log) -> None:
    patient = Patient(hf)
    await patient.job.enqueue()
    async with working(hf, lease=LEASE):
        await wait_for(patient.started)
        patient.started.clear()
        await query(hf, "delete from {hf}worker")
        await wait_for(patient.started)
        patient.go.set()
        await eventually(lambda: _delivered(hf))
    (line,) = logged(log, "worker lease lost")
    assert line["reason"] == "it had expired, or its row is gone"


async def test_a_lease_is_known_to_hold_for_less_than_it_lasts(hf: Holdfast) -> None:
    await hf._runtime.registration.prepare()
    started_at = time.monotonic()
    await hf.store.run(start_worker("w1", 0, [], [], LEASE))
    lease = Lease(hf.store, "w1", LEASE, lambda: None, started_at)
    assert 0 < lease.left < 0.9
    assert lease.left + time.monotonic() < started_at + LEASE.total_seconds()


async def test_only_half_a_lease_of_unbroken_contact_allows_to_call_another_dead(hf: Holdfast, log: Log) -> None:
    """One failed renewal breaks it, even if the next succeeds soon."""
    await hf._runtime.registration.prepare()
    await hf.store.run(start_worker("w1", 0, [], [], LEASE))
    lease = Lease(hf.store, "w1", LEASE, lambda: None)
    lease.start()
    try:
        assert lease.trusted_in > 0
        began = time.monotonic()
        await eventually(lambda: lease.trusted_in <= 0)
        assert time.monotonic() - began >= 0.45
        with trigger_on_workers(hf):
            await eventually(lambda: logged(log, "lease renewal failed"))
            broken = time.monotonic()
        await eventually(lambda: lease.trusted_in <= 0)
        assert time.monotonic() - broken >= 0.45
    finally:
        lease.stop()
        await asyncio.to_thread(lease.join)


async def test_a_process_that_was_stopped_has_lost_contact(hf: Holdfast) -> None:
    """As after SIGSTOP: nothing failed, but nothing was renewed either, and the others had no time to renew theirs."""
    await hf._runtime.registration.prepare()
    await hf.store.run(start_worker("w1", 0, [], [], 4 * LEASE))
    lease = Lease(hf.store, "w1", 4 * LEASE, lambda: None, time.monotonic() - 2.1)
    assert lease.trusted_in > 0
    lease.start()
    try:
        await eventually(lambda: lease.left > 3)
        assert lease.trusted_in > 0
        await eventually(lambda: lease.trusted_in <= 0)
    finally:
        lease.stop()
        await asyncio.to_thread(lease.join)


async def test_a_renewal_whose_reply_comes_after_the_lease_is_over_does_not_count(hf: Holdfast) -> None:
    """As after SIGSTOP. The row was renewed, but perhaps after another worker took over the deliveries."""
    await hf._runtime.registration.prepare()
    await hf.store.run(start_worker("w1", 0, [], [], 60 * LEASE))
    gone: list[bool] = []
    lease = Lease(hf.store, "w1", LEASE, lambda: gone.append(True), time.monotonic() - 2)
    assert await asyncio.to_thread(lease.renew) is None
    assert (gone, lease.left < 0) == ([True], True)


async def test_an_expired_lease_ends_the_session_although_the_store_is_reached_in_time(hf: Holdfast, log: Log) -> None:
    """By the clock of the database: this machine's clock may have stood still, as in a suspended virtual machine."""
    patient = Patient(hf)
    await patient.job.enqueue()
    async with working(hf, lease=LEASE):
        await wait_for(patient.started)
        patient.started.clear()
        await asyncio.to_thread(age, hf.store, 2 * LEASE, "worker", "delivery")
        await eventually(lambda: patient.cut_off)
        await wait_for(patient.started)
        patient.go.set()
        await eventually(lambda: _delivered(hf))
    assert logged(log, "worker lease lost")


async def _delivered(hf: Holdfast) -> bool:
    return await statuses(hf) == [Status.DELIVERED]


async def _alive(hf: Holdfast) -> bool:
    return (await only(hf)).status is Status.IN_FLIGHT and any(w.alive for w in await hf.store.run(workers()))
