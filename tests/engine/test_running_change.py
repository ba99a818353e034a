"""What changes while workers run: queues and consumers are paused, generations come and go."""

import asyncio
from datetime import timedelta

import pytest

from holdfast import Context, Holdfast, SchemaMismatch
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import pause_consumer, pause_queue, resume_consumer, resume_queue
from holdfast.stores.deliveries.worker import workers
from tests.support.apps import MakeApp
from tests.support.builders import sql
from tests.support.worker import all_of, drain, eventually, only, statuses, working


async def test_a_paused_queue_is_left_alone_until_it_is_resumed(hf: Holdfast) -> None:
    @hf.job(queue="mail")
    async def send() -> None: ...

    @hf.job()
    async def other() -> None: ...

    await other.enqueue()
    async with working(hf):
        await eventually(lambda: _all(hf, "other", Status.DELIVERED))
        await hf.store.run(pause_queue("mail", "ada", None))
        await send.enqueue()
        await other.enqueue()
        await eventually(lambda: _all(hf, "other", Status.DELIVERED, 2))
        waiting = await only(hf, "send")
        assert (waiting.status, waiting.attempts) == (Status.PENDING, 0)
        await hf.store.run(resume_queue("mail", "ada", None))
        await eventually(lambda: _all(hf, "send", Status.DELIVERED))


async def test_a_paused_consumer_is_left_alone_until_it_is_resumed(hf: Holdfast) -> None:
    @hf.consumer("order.placed")
    async def billing(payload: object) -> None: ...

    @hf.consumer("order.placed")
    async def shipping(payload: object) -> None: ...

    await hf.publish("order.placed", {}, conn=None)
    async with working(hf):
        await eventually(lambda: _all(hf, None, Status.DELIVERED, 2))
        await hf.store.run(pause_consumer("billing", "ada", None))
        await asyncio.sleep(0.2)  # which lanes there are is remembered for a moment
        await hf.publish("order.placed", {}, conn=None)
        await eventually(lambda: _all(hf, "shipping", Status.DELIVERED, 2))
        assert await statuses(hf, "billing") == [Status.DELIVERED, Status.PENDING]
        await hf.store.run(resume_consumer("billing", "ada", None))
        await eventually(lambda: _all(hf, "billing", Status.DELIVERED, 2))


async def test_waiting_until_idle_does_not_wait_for_what_is_paused(hf: Holdfast) -> None:
    @hf.job()
    async def send() -> None: ...

    await send.enqueue()
    await hf.store.run(pause_consumer("send", "ada", None))
    await drain(hf)
    assert await statuses(hf) == [Status.PENDING]


async def test_a_consumer_that_comes_later_gets_what_was_published_before(hf: Holdfast, make_app: MakeApp) -> None:
    await hf.publish("order.placed", {"n": 1}, conn=None)
    later, now = make_app(), make_app()
    seen: list[object] = []

    @later.consumer("order.*")
    async def from_the_beginning(payload: object) -> None:
        seen.append(payload)

    @now.consumer("order.*", start="now")
    async def from_now_on(payload: object) -> None:
        seen.append(payload)

    await drain(later)
    await drain(now)
    assert seen == [{"n": 1}]


class Fleet:
    """One consumer in two generations of an app, and who ran what."""

    def __init__(self, make_app: MakeApp) -> None:
        self.ran: list[tuple[int, str]] = []
        self.old, self.new = (self._declare(make_app(generation=n)) for n in (1, 2))

    def _declare(self, hf: Holdfast) -> Holdfast:
        @hf.consumer("order.placed")
        async def billing(ctx: Context, payload: object) -> None:
            self.ran.append((hf.generation, str(payload)))

        return hf


async def test_work_of_a_generation_is_run_by_its_own_workers_while_one_lives(make_app: MakeApp) -> None:
    fleet = Fleet(make_app)
    await fleet.old._runtime.registration.prepare()  # a deploy comes after the one before
    async with working(fleet.new), working(fleet.old):
        await eventually(lambda: _workers(fleet.old, 2))
        for n in range(10):
            await fleet.old.publish("order.placed", f"old {n}", conn=None)
            await fleet.new.publish("order.placed", f"new {n}", conn=None)
        await eventually(lambda: _all(fleet.old, None, Status.DELIVERED, 20))
    assert len(fleet.ran) == 20
    assert {(by, payload.split()[0]) for by, payload in fleet.ran} == {(1, "old"), (2, "new")}


async def test_when_none_of_a_generation_lives_newer_workers_take_its_work_over(make_app: MakeApp) -> None:
    fleet = Fleet(make_app)
    await fleet.old.publish("order.placed", "left behind", conn=None)
    await drain(fleet.new)
    assert fleet.ran == [(2, "left behind")]


async def test_an_older_worker_never_runs_newer_work(make_app: MakeApp) -> None:
    fleet = Fleet(make_app)
    await fleet.new.publish("order.placed", "too new", conn=None)
    await drain(fleet.old, idle_limit=timedelta(0))
    assert fleet.ran == []
    waiting = await only(fleet.old)
    assert (waiting.status, waiting.attempts, waiting.generation) == (Status.PENDING, 0, 2)


async def test_alive_means_alive_for_this_consumer(make_app: MakeApp) -> None:
    """A worker of the old generation lives, but it does not have the consumer: no other worker would run it."""
    fleet = Fleet(make_app)
    bystander = make_app(generation=1)

    @bystander.job()
    async def other() -> None: ...

    await fleet.old.publish("order.placed", "left behind", conn=None)
    async with working(bystander):
        await other.enqueue()
        await eventually(lambda: _all(bystander, "other", Status.DELIVERED))
        await drain(fleet.new)
    assert fleet.ran == [(2, "left behind")]


async def test_a_consumer_of_a_later_deploy_gets_no_work_that_only_earlier_workers_would_run(make_app: MakeApp) -> None:
    old, new = make_app(generation=1), make_app(generation=2)

    @new.consumer("order.placed")
    async def fresh(payload: object) -> None: ...

    await new._runtime.registration.prepare()
    await old.publish("order.placed", {}, conn=None)
    (found,) = await all_of(new)
    assert found.generation == 2


async def test_a_release_older_than_the_tables_neither_starts_a_worker_nor_publishes(make_app: MakeApp) -> None:
    old = make_app()

    @old.job()
    async def work() -> None: ...

    sql(old.store, "insert into {hf}schema_version (version, name) values (9999, 'later')")
    try:
        with pytest.raises(SchemaMismatch, match="upgrade holdfast"):
            await drain(old)
        with pytest.raises(SchemaMismatch, match="upgrade holdfast"):
            await work.enqueue()
        assert await old.store.run(workers()) == []
        assert await all_of(old) == []
    finally:
        sql(old.store, "delete from {hf}schema_version where version = 9999")


async def _workers(hf: Holdfast, number: int) -> bool:
    return len(await hf.store.run(workers())) == number


async def _all(hf: Holdfast, consumer: str | None, status: Status, number: int = 1) -> bool:
    return await statuses(hf, consumer) == [status] * number
