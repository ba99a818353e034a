"""What a dead worker left is taken over and decided about as any failure; what a live one lost track of is given back."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Holdfast, JobFailed, RetryPolicy, correlate
from holdfast.core.delivery import Delivery, Status
from holdfast.core.message import Address
from holdfast.runtime import completion
from holdfast.stores.deliveries.claim import Claimed, Lane, claim
from holdfast.stores.deliveries.worker import start_worker
from holdfast.stores.operation import Operation
from tests.engine.programs.proxy import Proxy
from tests.servers.postgres import PostgresServer
from tests.support.apps import MakeApp
from tests.support.worker import (
    Log,
    drain,
    eventually,
    logged,
    only,
    pass_time,
    query,
    run_records,
    statuses,
    working,
)

LEASE = timedelta(seconds=1)
CLAIM = "set status = 'in_flight', attempts = d.attempts + 1"
"""What only a claim contains: taking over, pruning and catching up skip locked rows too."""


async def abandoned(hf: Holdfast, consumer: str, *, alive: bool = False) -> Delivery:
    """The one job of this consumer, claimed by a worker that said no more; its own lease is over."""
    await hf.store.run(start_worker("gone", 0, [], [consumer], LEASE))
    await hf.store.run(claim([Lane("default", consumer, 0, 1)], "gone", LEASE, 10))
    await pass_time(hf, LEASE * 2, "delivery", *(() if alive else ("worker",)))
    found = await only(hf)
    assert (found.status, found.locked_by, found.attempts) == (Status.IN_FLIGHT, "gone", 1)
    return found


async def test_what_a_dead_worker_held_is_run_again_and_its_attempt_counts(hf: Holdfast, log: Log) -> None:
    seen: list[int] = []

    @hf.job(retry=RetryPolicy.fixed(0, attempts=3))
    async def work(ctx: Context) -> None:
        seen.append(ctx.attempt)

    await work.enqueue()
    before = await abandoned(hf, "work")
    async with working(hf, lease=LEASE):
        await eventually(lambda: _all(hf, Status.DELIVERED))
    done = await only(hf)
    assert (seen, done.attempts) == ([2], 2)
    assert done.fence > before.fence + 1
    (run,) = await run_records(hf)
    assert (run.attempt, run.outcome, run.error) == (1, "lease_expired", "worker lease expired")
    assert logged(log, "lease expired")
    (retried,) = logged(log, "delivery retried")
    assert (retried["error"], retried["attempt"], retried["max_attempts"]) == ("worker lease expired", 1, 3)


@pytest.mark.parametrize("known", [True, False], ids=["own consumer", "consumer of another app"])
async def test_a_take_over_logs_an_identity_only_if_the_worker_knows_that_it_is_trusted(
    hf: Holdfast, make_app: MakeApp, log: Log, known: bool
) -> None:
    other = make_app()

    @hf.job()
    async def work() -> None: ...

    @other.job()
    async def rest() -> None: ...

    with correlate(request_id="r-1", tenant="acme"):
        await work.enqueue()
    await abandoned(hf, "work")
    async with working(hf if known else other, lease=LEASE):
        await eventually(lambda: logged(log, "lease expired"))
    (line,) = logged(log, "lease expired")
    assert (line["request_id"], line.get("tenant")) == ("r-1", "acme" if known else None)


async def test_an_expired_lease_can_spend_the_last_attempt_and_wakes_the_callers_that_wait(
    make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A caller that is not woken would wait for its next poll.
    monkeypatch.setattr(completion, "_SHORTEST_POLL", 3600.0)
    alerts: list[object] = []
    hf = make_app(alerts=[alerts.append])

    @hf.job(retry=RetryPolicy.none(), result="1h")
    async def work() -> None: ...

    handle = await work.enqueue()
    await abandoned(hf, "work")
    wait = asyncio.create_task(handle.result(timeout="30s"))
    await eventually(lambda: hf._runtime.completions._waiting)
    async with working(hf, lease=LEASE):
        with pytest.raises(JobFailed, match="lease expired"):
            await wait
    dead = await only(hf)
    assert (dead.last_error, dead.error_type) == ("worker lease expired", "holdfast.LeaseExpired")
    assert len(alerts) == 1


async def test_a_worker_decides_for_consumers_it_does_not_have(hf: Holdfast, make_app: MakeApp) -> None:
    """The policy is in the database: here it is the consumer's own, of one attempt."""
    other = make_app()

    @other.job(retry=RetryPolicy.none())
    async def work() -> None: ...

    await work.enqueue()
    await abandoned(other, "work")
    async with working(hf, lease=LEASE):
        await eventually(lambda: _all(hf, Status.FAILED))


async def test_a_live_worker_keeps_claims_of_any_age(hf: Holdfast) -> None:
    @hf.job()
    async def work() -> None: ...

    await work.enqueue()
    await abandoned(hf, "work", alive=True)
    later = "alive_until + 60000" if _lite(hf) else "now() + interval '1m'"
    await query(hf, f"update {{hf}}worker set alive_until = {later}")
    async with working(hf, lease=LEASE):
        await _trusted(hf)
        assert (await only(hf, "work")).locked_by == "gone"


async def test_no_worker_is_declared_dead_before_half_a_lease_of_contact(hf: Holdfast, log: Log) -> None:
    """After an outage the rows of living workers may look expired: they need time to renew theirs."""

    @hf.job()
    async def work() -> None: ...

    await work.enqueue()
    await abandoned(hf, "work")
    began = time.monotonic()
    async with working(hf, lease=LEASE):
        await eventually(lambda: logged(log, "lease expired"))
    assert LEASE.total_seconds() / 2 <= time.monotonic() - began


async def test_a_second_expiry_in_a_row_makes_a_suspect_that_no_ordinary_worker_runs(hf: Holdfast) -> None:
    ran: list[int] = []

    @hf.job(retry=RetryPolicy.fixed(0, attempts=5))
    async def work() -> None:
        ran.append(1)

    await work.enqueue()
    await abandoned(hf, "work")
    await query(hf, "update {hf}delivery set expiries = 1")
    async with working(hf, lease=LEASE):
        await eventually(lambda: _suspect(hf))
    assert ran == []
    await drain(hf, suspects=True)
    done = await only(hf)
    assert (ran, done.status, done.suspect) == ([1], Status.DELIVERED, False)


async def test_a_claim_whose_reply_was_lost_is_given_back_by_the_worker_itself(
    postgres18: PostgresServer, postgres18_dsn: str, log: Log
) -> None:
    """No other worker would: the worker's own lease keeps it alive."""
    seen: list[int] = []
    with Proxy(postgres18) as proxy:
        hf = Holdfast(proxy.dsn(postgres18_dsn))

        @hf.job(retry=RetryPolicy.none())
        async def work(ctx: Context) -> None:
            seen.append(ctx.attempt)

        await work.enqueue()
        proxy.lose(CLAIM, forward=True)
        async with working(hf, lease=LEASE):
            await eventually(lambda: _all(hf, Status.DELIVERED))
        assert proxy.lost == 1
        await hf.close()
    assert seen == [1]
    assert logged(log, "orphaned claim released")
    assert logged(log, "worker lease lost") == []


async def test_a_claim_whose_reply_is_slow_is_not_taken_for_lost(
    hf: Holdfast, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the worker releases it, then starts it, and claims it again while it runs."""
    seen: list[int] = []

    @hf.job(retry=RetryPolicy.none())
    async def work() -> None:
        seen.append(1)

    reply = hf.store.run

    async def slow(steps: Operation[Any]) -> Any:
        found = await reply(steps)
        if isinstance(found, list) and found and isinstance(found[0], Claimed):
            await asyncio.sleep(LEASE.total_seconds() * 0.9)
        return found

    monkeypatch.setattr(hf.store, "run", slow)
    await work.enqueue()
    async with working(hf, lease=LEASE):
        await eventually(lambda: _all(hf, Status.DELIVERED))
    assert (seen, (await only(hf)).fence) == ([1], 1)
    assert logged(log, "orphaned claim released") == []


async def test_a_claim_that_is_settled_while_the_claims_are_read_is_not_taken_for_lost(
    hf: Holdfast, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first scan does not know it because its reply is slow; during the second one it ends."""
    release, reply, slowed = asyncio.Event(), hf.store.run, []

    @hf.job(retry=RetryPolicy.none())
    async def work() -> None:
        await release.wait()

    async def slow(steps: Operation[Any]) -> Any:
        found = await reply(steps)
        if isinstance(found, list) and found and isinstance(found[0], Claimed):
            await asyncio.sleep(LEASE.total_seconds() * 0.9)
            slowed.append("claim")
        elif slowed and isinstance(found, dict) and found and not release.is_set():
            release.set()  # the read of what the worker holds
            await eventually(lambda: _all(hf, Status.DELIVERED))
            await asyncio.sleep(0.1)
        return found

    monkeypatch.setattr(hf.store, "run", slow)
    await work.enqueue()
    async with working(hf, lease=LEASE):
        await eventually(lambda: _all(hf, Status.DELIVERED))
        await asyncio.sleep(0.2)
    assert slowed == ["claim"]
    assert logged(log, "orphaned claim released") == []


async def test_a_claim_whose_reply_was_lost_is_given_back_at_the_end_at_the_latest(
    postgres18: PostgresServer, postgres18_dsn: str
) -> None:
    with Proxy(postgres18) as proxy:
        hf = Holdfast(proxy.dsn(postgres18_dsn))

        @hf.job(retry=RetryPolicy.none())
        async def work() -> None: ...

        await work.enqueue()
        proxy.lose(CLAIM, forward=True)
        async with working(hf, lease=timedelta(seconds=30)):
            await eventually(lambda: proxy.lost)
            await eventually(lambda: _all(hf, Status.IN_FLIGHT))
        left = await only(hf)
        assert (left.status, left.attempts) == (Status.PENDING, 0)
        await hf.close()


@pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)
async def test_a_worker_announced_by_a_lost_reply_starts_under_another_name(
    postgres18: PostgresServer, dsn: str, log: Log
) -> None:
    with Proxy(postgres18) as proxy:
        hf = Holdfast(proxy.dsn(dsn))

        @hf.job()
        async def work() -> None: ...

        await work.enqueue()
        proxy.lose(".worker (id, generation", forward=True)
        async with working(hf):
            await eventually(lambda: _all(hf, Status.DELIVERED))
        await hf.close()
    assert proxy.lost == 1
    assert logged(log, "store unavailable")


async def _all(hf: Holdfast, status: Status) -> bool:
    return await statuses(hf) == [status]


async def _suspect(hf: Holdfast) -> bool:
    found = await only(hf)
    return found.status is Status.PENDING and found.suspect


async def _trusted(hf: Holdfast) -> None:
    """Until the worker takes over what others left: it has just done so with another one."""
    message = hf._runtime.producer.build("job.unknown", {}, addressed=[Address(consumer="unknown")])
    await hf._runtime.publish([message], None)
    await hf.store.run(claim([Lane("default", "unknown", 0, 1)], "long gone", LEASE, 10))
    past = "0" if _lite(hf) else "'epoch'"
    await query(hf, f"update {{hf}}delivery set lease_until = {past} where consumer = 'unknown'")
    await eventually(lambda: _pending(hf))


async def _pending(hf: Holdfast) -> bool:
    return await statuses(hf, "unknown") == [Status.PENDING]


def _lite(hf: Holdfast) -> bool:
    return hf.store.dialect.name == "sqlite"
