"""Block and park: what is held back during an outage, and what still ends."""

import asyncio
import contextlib
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from holdfast import CircuitOpen, Context, Holdfast, Job, Outage, RetryPolicy, Snooze
from holdfast.core.decide import MAX_HOLDS
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import audit
from holdfast.stores.messages.registry import consumers
from tests.support.apps import MakeApp
from tests.support.worker import (
    Log,
    all_of,
    drain,
    eventually,
    logged,
    only,
    pass_time,
    query,
    run_records,
    statuses,
    wait_for,
    working,
)

NOW = timedelta(0)


class Resource:
    """Something of ours that can be out; `asked` counts its probes."""

    def __init__(self, well: bool = False) -> None:
        self.well, self.asked = well, 0

    async def probe(self) -> bool:
        self.asked += 1
        return self.well


@pytest.fixture
def mail() -> Resource:
    return Resource()


@pytest.fixture
def app(make_app: MakeApp, mail: Resource) -> Holdfast:
    return make_app(probes={"mail": mail.probe})


@pytest.mark.parametrize("how", ["raised", "returned"])
async def test_an_outage_returns_the_attempt_and_blocks_the_consumer(app: Holdfast, how: str) -> None:
    @app.job(retry=RetryPolicy.none())
    async def send() -> Any:
        if how == "raised":
            raise Outage("mail")
        return Outage("mail")

    await send.enqueue()
    await drain(app, idle_limit=NOW)
    held = await only(app)
    assert (held.status, held.attempts, held.holds) == (Status.PENDING, 0, 0)
    assert held.run_at > datetime.now(UTC)
    (consumer,) = await app.store.run(consumers())
    assert consumer.blocked_resource == "mail"
    assert consumer.blocked_until is not None
    assert [(run.outcome, run.error) for run in await run_records(app)] == [("failed", "mail is unavailable")]


async def test_a_blocked_consumer_is_left_alone_by_every_worker(
    app: Holdfast, make_app: MakeApp, mail: Resource
) -> None:
    ran: list[str] = []

    def declare(hf: Holdfast, worker: str) -> Job[[], Any]:
        @hf.job()
        async def send() -> None:
            ran.append(worker)
            raise Outage("mail")

        @hf.job()
        async def other() -> None: ...

        return send

    second = make_app(probes={"mail": mail.probe})
    send, _ = declare(app, "first"), declare(second, "second")
    await send.enqueue()
    await drain(app, idle_limit=NOW)
    assert ran == ["first"]
    for _ in range(5):
        await send.enqueue()
    await second.publish("order.placed", {}, conn=None)
    await drain(second, idle_limit=NOW)
    assert ran == ["first"]
    assert [d.attempts for d in await all_of(app, "send")] == [0] * 6


async def test_it_continues_without_help_when_the_resource_is_back(app: Holdfast, mail: Resource) -> None:
    seen: list[int] = []

    @app.job(retry=RetryPolicy.none())
    async def send(ctx: Context) -> None:
        seen.append(ctx.attempt)
        if not mail.well:
            raise Outage("mail")

    await send.enqueue()
    async with working(app):
        await eventually(lambda: _blocked(app))
        mail.well = True
        await pass_time(app, timedelta(seconds=10), "delivery", "consumer")
        await eventually(lambda: _done(app))
    assert seen == [1, 1]


async def test_waiting_until_idle_waits_for_a_block_that_ends_soon(app: Holdfast, mail: Resource) -> None:
    @app.job()
    async def send(ctx: Context) -> None:
        if not mail.well:
            mail.well = True
            await query(app, "update {hf}consumer set blocked_until = null")
            raise Outage("cache")

    await send.enqueue()
    await drain(app, idle_limit=timedelta(seconds=1))
    held = await only(app)
    assert (held.status, held.holds) == (Status.PENDING, 1)


async def test_holds_while_the_probe_succeeds_are_counted_and_do_not_block_the_others(
    app: Holdfast, mail: Resource
) -> None:
    mail.well = True

    @app.job()
    async def send(n: int) -> None:
        if n == 0:
            raise Outage("mail")

    await send.enqueue(0)
    await send.enqueue(1)
    await drain(app, idle_limit=NOW)
    done, held = sorted(await all_of(app), key=lambda one: one.status)
    assert (held.status, held.attempts, held.holds) == (Status.PENDING, 0, 1)
    assert done.status is Status.DELIVERED
    (consumer,) = await app.store.run(consumers())
    assert consumer.blocked_until is None


async def test_poison_that_looks_like_an_outage_ends_as_a_dead_letter(app: Holdfast, mail: Resource) -> None:
    mail.well = True

    @app.job(retry=RetryPolicy.fixed(0, attempts=2))
    async def send() -> None:
        raise Outage("mail")

    await send.enqueue()
    await query(app, f"update {{hf}}delivery set holds = {MAX_HOLDS - 1}")
    await drain(app, idle_limit=NOW)
    assert (await only(app)).holds == MAX_HOLDS
    await pass_time(app, timedelta(hours=1), "delivery")
    await drain(app, idle_limit=NOW)
    dead = await only(app)
    assert (dead.status, dead.attempts, dead.last_error) == (Status.FAILED, 2, "mail is unavailable")


async def test_without_a_probe_an_outage_may_last_and_one_delivery_at_a_time_tries_whether_it_is_over(
    make_app: MakeApp,
) -> None:
    """Two workers, thirty deliveries, an outage of fifty pauses: nothing is spent, and all are delivered afterwards."""
    first = make_app()
    # One engine at a time on SQLite.
    workers = [first] if first.dsn.startswith("sqlite") else [first, make_app()]
    out, runs = True, 0
    done: list[int] = []

    def declare(hf: Holdfast) -> Job[[int], Any]:
        @hf.job(retry=RetryPolicy.none())
        async def send(n: int) -> None:
            nonlocal runs
            runs += 1
            if out:
                raise Outage("mail")
            done.append(n)

        return send

    def ran_more(than: int) -> bool:
        return runs > than

    send, *_ = [declare(hf) for hf in workers]
    await first._runtime.publish([send._message((n,), {})[1] for n in range(30)], None)
    async with contextlib.AsyncExitStack() as stack:
        for hf in workers:
            await stack.enter_async_context(working(hf, concurrency=5))
        await eventually(lambda: _blocked(first))
        for _ in range(50):
            await eventually(lambda: _settled(first))
            before = runs
            await pass_time(first, timedelta(minutes=10), "delivery", "consumer")
            await eventually(partial(ran_more, before))
            await eventually(lambda: _blocked(first))
            assert runs == before + 1
        # The consumer is blocked before the delivery that met the outage is released.
        await eventually(lambda: _settled(first))
        held = await all_of(first)
        assert {(d.status, d.attempts) for d in held} == {(Status.PENDING, 0)}
        assert sum(d.holds for d in held) <= len(workers)
        out = False
        await pass_time(first, timedelta(minutes=10), "delivery", "consumer")
        await eventually(lambda: len(done) == 30)
    assert sorted(done) == list(range(30))
    acts = [entry.action for entry in reversed(await first.store.run(audit()))]
    assert acts == ["block", "unblock"]


async def test_without_a_probe_poison_that_looks_like_an_outage_does_not_stop_the_others_and_ends(
    hf: Holdfast,
) -> None:
    done: list[int] = []

    @hf.job(retry=RetryPolicy.fixed(0, attempts=2))
    async def send(n: int) -> None:
        if n == 0:
            raise Outage("mail")
        done.append(n)

    await send.enqueue(0)
    await drain(hf, idle_limit=NOW)
    await query(hf, f"update {{hf}}delivery set holds = {MAX_HOLDS - 5}")  # after fifteen further rounds
    async with working(hf, poll=timedelta(milliseconds=50)):
        for n in range(1, 10 * MAX_HOLDS):
            await eventually(lambda: _settled(hf))
            await send.enqueue(n)
            await pass_time(hf, timedelta(minutes=10), "delivery", "consumer")
            await eventually(partial(done.__contains__, n))
            if (await all_of(hf))[0].status is Status.FAILED:
                break
    poison = (await all_of(hf))[0]
    assert (poison.status, poison.attempts) == (Status.FAILED, 2)


@pytest.mark.parametrize("ends", ["fails", "snoozes"])
async def test_any_outcome_that_does_not_blame_the_resource_ends_the_outage(hf: Holdfast, ends: str) -> None:
    out = True

    @hf.job(retry=RetryPolicy.none())
    async def send(n: int) -> None:
        if out:
            raise Outage("mail")
        if n == 0:
            raise ValueError("a bug") if ends == "fails" else Snooze("1h")

    await send.enqueue(0)
    await drain(hf, idle_limit=NOW)
    assert await _blocked(hf)
    await send.enqueue(1)
    out = False
    await pass_time(hf, timedelta(minutes=1), "delivery", "consumer")
    await drain(hf, idle_limit=NOW)
    (consumer,) = await hf.store.run(consumers())
    assert (consumer.blocked_until, consumer.blocked_resource) == (None, None)
    assert Status.DELIVERED in await statuses(hf)


async def test_a_trial_that_was_cut_off_leaves_the_consumer_blocked(hf: Holdfast) -> None:
    out, running = True, asyncio.Event()

    @hf.job()
    async def send() -> None:
        if out:
            raise Outage("mail")
        running.set()
        await asyncio.sleep(3600)

    await send.enqueue()
    await drain(hf, idle_limit=NOW)
    out = False
    await pass_time(hf, timedelta(minutes=1), "delivery", "consumer")
    async with working(hf, grace=timedelta(milliseconds=50)):
        await wait_for(running)
    assert await _blocked(hf)
    assert ((await only(hf)).status, (await only(hf)).attempts) == (Status.PENDING, 0)


async def test_a_probe_may_be_a_plain_function_and_one_that_raises_means_out(make_app: MakeApp, log: Log) -> None:
    def broken() -> bool:
        raise ConnectionError("no route to the cache")

    hf = make_app(probes={"cache": broken, "disk": lambda: True})

    @hf.job()
    async def warm() -> None:
        raise Outage("cache")

    @hf.job()
    async def write() -> None:
        raise Outage("disk")

    await warm.enqueue()
    await write.enqueue()
    await drain(hf, idle_limit=NOW)
    assert {c.name: c.blocked_resource for c in await hf.store.run(consumers())} == {"warm": "cache", "write": None}
    (line,) = logged(log, "resource unavailable")
    assert "no route to the cache" in line["error"]


async def test_what_waits_in_the_worker_for_a_blocked_consumer_is_given_back(app: Holdfast, mail: Resource) -> None:
    """Claimed ahead and not started: back to pending, unspent, and not run before the pause is over."""
    ran: list[int] = []
    go = asyncio.Event()

    @app.job()
    async def send(n: int) -> None:
        if n < 400:
            await asyncio.sleep(0.002)  # short work, so that the worker claims ahead
            return
        ran.append(n)
        await go.wait()
        raise Outage("mail")

    await app._runtime.publish([send._message((n,), {})[1] for n in range(400)], None)
    await app._runtime.publish([send._message((n,), {})[1] for n in range(400, 500)], None)
    async with working(app, concurrency=2):
        await eventually(lambda: len(ran) == 2 and _in_flight(app, more_than=2))
        go.set()
        await eventually(lambda: _in_flight(app, exactly=0))
        # Two at a time, whenever a pause is over; on a busy machine one may be.
        assert len(ran) <= 6
    held = [d for d in await all_of(app) if d.status is not Status.DELIVERED]
    assert (len(held), {(d.status, d.attempts) for d in held}) == (100, {(Status.PENDING, 0)})


async def test_many_failures_at_once_ask_the_probe_and_write_the_pause_once(app: Holdfast, mail: Resource) -> None:
    barrier = asyncio.Barrier(5)

    @app.job()
    async def send(n: int) -> None:
        await barrier.wait()
        raise Outage("mail")

    await app._runtime.publish([send._message((n,), {})[1] for n in range(5)], None)
    await drain(app, concurrency=5, idle_limit=NOW)
    assert mail.asked == 1
    assert [entry.action for entry in await app.store.run(audit())] == ["block"]


@pytest.mark.parametrize("how", ["raised", "returned"])
@pytest.mark.parametrize("until", ["duration", "datetime"])
async def test_an_open_circuit_parks_and_spends_nothing(hf: Holdfast, how: str, until: str) -> None:
    opens_at = datetime.now(UTC) + timedelta(minutes=10)

    @hf.job(retry=RetryPolicy.none())
    async def call() -> Any:
        signal = CircuitOpen("acme", opens_at if until == "datetime" else "10m")
        if how == "raised":
            raise signal
        return signal

    await call.enqueue()
    await drain(hf)
    parked = await only(hf)
    assert (parked.status, parked.attempts, parked.holds) == (Status.PENDING, 0, 0)
    assert abs(parked.run_at - opens_at) < timedelta(seconds=20)


@pytest.mark.parametrize("tried", [True, False])
async def test_only_what_was_tried_leaves_a_run_record(hf: Holdfast, tried: bool) -> None:
    """A delivery that waits for a day before an open circuit would leave hundreds of them, which all say the same."""

    @hf.job()
    async def call() -> None:
        cause = ConnectionError("refused") if tried else None
        raise CircuitOpen("mail", timedelta(hours=1)) from cause

    await call.enqueue()
    await drain(hf, idle_limit=timedelta(0))
    assert len(await run_records(hf)) == tried
    assert (await only(hf)).last_error


async def test_a_parked_delivery_comes_back_when_the_circuit_may_close(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.job(retry=RetryPolicy.none())
    async def call(ctx: Context) -> None:
        seen.append(ctx.attempt)
        if len(seen) == 1:
            raise CircuitOpen("acme", "10m")

    await call.enqueue()
    await drain(hf)
    await pass_time(hf, timedelta(minutes=11), "delivery")
    await drain(hf)
    assert (seen, await statuses(hf)) == ([1, 1], [Status.DELIVERED])


async def _blocked(hf: Holdfast) -> bool:
    found = (await hf.store.run(consumers()))[0].blocked_until
    return found is not None and found > datetime.now(UTC)


async def _settled(hf: Holdfast) -> bool:
    return Status.IN_FLIGHT not in await statuses(hf)


async def _done(hf: Holdfast) -> bool:
    return await statuses(hf) == [Status.DELIVERED]


async def _in_flight(hf: Holdfast, more_than: int = -1, exactly: int | None = None) -> bool:
    count = (await statuses(hf)).count(Status.IN_FLIGHT)
    return count == exactly if exactly is not None else count > more_than
