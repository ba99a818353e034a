"""Calls without a connection belong to the open `atomic` block of the alias."""

import asyncio
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction

from holdfast import Context, HoldfastError, WorkerOptions
from holdfast.core.delivery import Status
from holdfast.stores.queries.query import Filter, deliveries, messages


def stored(hf: Any) -> int:
    """The messages that another connection sees."""
    return len(hf.store.run_sync(messages(limit=100)))


def test_a_call_in_an_atomic_block_commits_and_rolls_back_with_it(hf: Any) -> None:
    @hf.job()
    def send(to: str) -> None: ...

    flow = hf.workflow("order")

    @flow.step
    async def first() -> None: ...

    hf.sync.publish("order.placed", {"id": 1}, conn=None)
    with transaction.atomic():
        hf.sync.publish("order.placed", {"id": 2})
        hf.sync.publish_many([("order.placed", {"id": 3}), ("order.placed", {"id": 4})])
        send.sync.enqueue("ada")
        send.sync.enqueue_many([("ada",), ("bob",)])
        flow.sync.start()
        with transaction.atomic():
            send.sync.enqueue("carol")
            transaction.set_rollback(True)
        assert stored(hf) == 1
    assert stored(hf) == 8
    with transaction.atomic():
        hf.sync.publish("order.placed", {"id": 5})
        send.sync.enqueue("ada")
        flow.sync.start()
        transaction.set_rollback(True)
    assert stored(hf) == 8


def test_commands_to_a_run_belong_to_the_block_as_its_start_does(hf: Any) -> None:
    flow = hf.workflow("order")

    @flow.step
    async def first() -> None: ...

    run = flow.sync.start()

    def command(run: Any) -> None:
        run.signal("paid")
        run.trigger("first")
        run.retry()
        run.fork(from_="first")
        run.cancel()

    async def send() -> None:
        await run.signal("paid")
        await run.fork(from_="first")

    for call, added in ((lambda: command(run.sync), 5), (async_to_sync(send), 2)):
        before = stored(hf)
        with transaction.atomic():
            call()
            assert stored(hf) == before
            transaction.set_rollback(True)
        assert stored(hf) == before
        with transaction.atomic():
            call()
        assert stored(hf) == before + added
    before = stored(hf)
    with transaction.atomic():
        run.sync.signal("paid", conn=None)
        assert stored(hf) == before + 1


def test_schedules_and_cancellations_belong_to_the_block(hf: Any) -> None:
    @hf.job()
    def send(to: str) -> None: ...

    handles = [send.sync.enqueue("ada"), send.sync.enqueue("bob"), send.sync.enqueue("cy")]
    group = hf.group([send.call("dora")]).sync.enqueue()

    def change(n: int) -> None:
        hf.schedules.sync.put(f"mail:{n}", every="1d", job=send, args=("ada",))
        assert hf.schedules.sync.get(f"mail:{n}") is not None
        hf.schedules.sync.pause("digest")
        assert handles[n].sync.cancel(reason="customer left")
        assert group.sync.cancel() == 1

    async def change_async() -> None:
        await hf.schedules.put("mail:2", every="1d", job=send, args=("ada",))
        await hf.schedules.pause("digest")
        assert await handles[2].cancel()
        assert await group.cancel() in (0, 1)

    def committed() -> tuple[list[str], bool, int, int]:
        schedules = hf.schedules.sync.list(conn=None)
        waiting = hf.store.run_sync(deliveries(Filter(statuses=(Status.PENDING,)), limit=100))
        cancelled = group.sync.progress().cancelled
        return [one.name for one in schedules], schedules[0].paused_at is not None, len(waiting), cancelled

    hf.schedules.sync.put("digest", every="1d", job=send, args=("ada",))
    before = committed()
    assert before == (["digest"], False, 4, 0)
    for call in (lambda: change(0), async_to_sync(change_async)):
        with transaction.atomic():
            call()
            assert committed() == before
            transaction.set_rollback(True)
        assert committed() == before
    with transaction.atomic():
        change(1)
    assert committed() == (["digest", "mail:1"], True, 2, 1)
    with transaction.atomic():
        async_to_sync(change_async)()
        assert committed()[2] == 2
    assert committed() == (["digest", "mail:1", "mail:2"], True, 1, 1)


def test_a_call_outside_of_a_block_commits_at_once(hf: Any) -> None:
    hf.sync.publish("order.placed", {"id": 1})
    async_to_sync(hf.publish)("order.placed", {"id": 2})
    assert stored(hf) == 2


def test_a_transaction_without_autocommit_is_joined(hf: Any) -> None:
    connection.set_autocommit(False)
    hf.sync.publish("order.placed", {"id": 1})
    connection.rollback()
    connection.set_autocommit(True)
    assert stored(hf) == 0


def test_async_code_joins_the_block_of_the_thread_that_waits_for_it(hf: Any) -> None:
    @hf.job()
    async def send(to: str) -> None: ...

    async def place() -> None:
        await hf.publish("order.placed", {"id": 1})
        await send.enqueue("ada")

    with transaction.atomic():
        async_to_sync(place)()
        transaction.set_rollback(True)
    assert stored(hf) == 0
    with transaction.atomic():
        async_to_sync(place)()
    assert stored(hf) == 2


def test_a_worker_is_woken_after_the_commit_only(hf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hf.sync.publish("order.placed", {"id": 1})
    woken: list[bool] = []
    monkeypatch.setattr(hf._runtime.producer, "_notify", lambda: woken.append(connection.in_atomic_block))
    with transaction.atomic():
        hf.sync.publish("order.placed", {"id": 2})
        assert woken == []
    assert woken == [False]


def test_a_completion_names_the_alias_and_not_the_remedies_of_publish(hf: Any) -> None:
    errors: list[str] = []

    @hf.consumer("order.placed")
    def bill(ctx: Context, order: dict[str, Any]) -> None:
        for given in ({}, {"conn": None}, {"conn": "default"}):
            try:
                ctx.sync.complete(**given)
            except (TypeError, HoldfastError) as error:
                errors.append(str(error))
        with transaction.atomic():
            ctx.sync.complete(conn="default")

    hf.sync.publish("order.placed", {"id": 1})
    asyncio.run(hf.work(WorkerOptions(until_idle=True, cron=False)))
    assert hf.store.run_sync(deliveries(Filter()))[0].delivery.status is Status.DELIVERED
    missing, none, outside = errors
    assert "in Django the alias (conn='default')" in missing
    assert "with which the handler writes its effect, in Django the alias (conn='default')" in none
    assert "use `with transaction.atomic():`" in outside
    assert not [error for error in errors if "separate" in error or "message" in error]
