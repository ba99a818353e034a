"""A handler straight from the stream: acknowledged after success, durable retry or durable dead letter, never before."""

import asyncio
import contextlib
import sqlite3
import time
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, Outage, RetryPolicy, Snooze, TerminalError, WorkerOptions
from holdfast.core.delivery import Status
from holdfast.runtime.brokers.streams import HandledKeyPruner
from holdfast.stores.event_log.projection import last_run
from holdfast.stores.messages.intake import record_handled
from holdfast.stores.queries.query import Filter, messages
from tests.brokers.redis_stream import Stream, redis_server, stream
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
    wait_for,
    working,
)

__all__ = ["redis_server", "stream"]

SQLITE = pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)


def straight(hf: Holdfast, stream: Stream, **options: Any) -> Any:
    source = options.pop("source", None) or stream.source()
    return hf.consumer("payment.settled", name="straight", source=source, direct=True, **options)


@SQLITE
async def test_a_success_is_acknowledged_and_leaves_nothing_in_the_store(hf: Holdfast, stream: Stream) -> None:
    got: list[Any] = []

    @straight(hf, stream)
    def handle(ctx: Context, payment: dict[str, int]) -> None:
        got.append((payment["n"], ctx.attempt, ctx.source))

    for n in range(10):
        stream.put({"n": n})
    await drain(hf)
    assert sorted(got) == [(n, 1, f"redis:{stream.name}") for n in range(10)]
    assert stream.pending() == stream.left() == 0
    assert await all_of(hf) == []
    assert await hf.store.run(messages()) == []


async def test_a_failure_is_stored_with_its_attempt_and_run_then_acknowledged_and_retried(
    hf: Holdfast, stream: Stream
) -> None:
    seen: list[tuple[int, Any]] = []

    @straight(hf, stream, retry=RetryPolicy.fixed(0.05, attempts=3))
    async def handle(ctx: Context, payment: dict[str, int]) -> None:
        seen.append((ctx.attempt, ctx.message_id))
        if ctx.attempt < 3:
            raise ConnectionError("the bank is closed")

    stream.put({"n": 1}, request_id="r-1")
    await drain(hf)
    found = await only(hf)
    assert (found.status, found.attempts) == (Status.DELIVERED, 3)
    assert [attempt for attempt, _ in seen] == [1, 2, 3]
    assert {id for _, id in seen} == {found.message_id}
    assert [(run.attempt, run.outcome) for run in await run_records(hf)] == [(1, "failed"), (2, "failed")]
    assert stream.pending() == 0


@pytest.mark.parametrize(
    ("signal", "status", "attempts"),
    [(TerminalError("no such account"), Status.FAILED, 1), (Snooze(300), Status.PENDING, 0)],
    ids=["dead", "snoozed"],
)
async def test_what_a_handler_signals_is_durable_before_the_acknowledgement(
    hf: Holdfast, stream: Stream, log: Log, signal: Exception, status: Status, attempts: int
) -> None:
    @straight(hf, stream)
    async def handle(payment: dict[str, int]) -> None:
        raise signal

    stream.put({"n": 1})
    await drain(hf)
    found = await only(hf)
    assert (found.status, found.attempts) == (status, attempts)
    assert stream.pending() == 0
    assert [line["dlq_id"] for line in logged(log, "dead letter")] == [str(found.id)] * (status is Status.FAILED)
    last = await hf.store.run(last_run("straight"))
    assert (None if last is None else last.delivery_id) == (found.id if status is Status.FAILED else None)


async def test_an_outage_stops_the_stream_until_a_stored_delivery_has_tried_it(hf: Holdfast, stream: Stream) -> None:
    out, runs, done = True, 0, set[int]()

    @straight(hf, stream, retry=RetryPolicy.none())
    async def handle(payment: dict[str, int]) -> None:
        nonlocal runs
        runs += 1
        if out:
            raise Outage("bank")
        done.add(payment["n"])

    async def held() -> bool:
        found = await all_of(hf)
        return bool(found) and all(one.status is Status.PENDING for one in found)

    def ran_more(than: int) -> bool:
        return runs > than

    stream.put({"n": 0})
    async with working(hf):
        await eventually(partial(ran_more, 0))
        await eventually(held)
        for n in range(1, 30):
            stream.put({"n": n})
        for _ in range(5):
            before = runs
            await pass_time(hf, timedelta(minutes=10), "delivery", "consumer")
            await eventually(partial(ran_more, before))
            await eventually(held)

        async def unspent() -> bool:  # a trial that is running has counted its attempt and returns it
            return {one.attempts for one in await all_of(hf)} == {0}

        await eventually(unspent)
        assert sum(one.holds for one in await all_of(hf)) == 1
        out = False
        for _ in range(5):
            # A run that had begun before pauses the stream once more.
            await pass_time(hf, timedelta(minutes=10), "delivery", "consumer")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await eventually(lambda: len(done) == 30)
                break
    assert len(done) == 30


@SQLITE
async def test_what_completed_in_its_own_transaction_is_not_done_again(hf: Holdfast, stream: Stream, log: Log) -> None:
    path = hf.dsn.removeprefix("sqlite:///")
    broken = True

    @straight(hf, stream)
    def handle(ctx: Context, payment: dict[str, int]) -> None:
        with sqlite3.connect(path, timeout=10) as db:
            db.execute("create table if not exists effect (n integer)")
            db.execute("insert into effect values (?)", (payment["n"],))
            ctx.sync.complete(conn=db)
            if broken and payment["n"] == 2:
                db.rollback()
        db.close()
        if payment["n"] == 3:
            raise ConnectionError("after the commit")

    for n in range(5):
        stream.put({"n": n})
    await drain(hf, idle_limit=timedelta(0))
    (held,) = await all_of(hf)
    assert held.error_type == "holdfast.RolledBack"
    # The group was deleted and everything is read once more: what failed is known, too.
    stream.client.xgroup_setid(stream.name, "shop", "0")
    await drain(hf, idle_limit=timedelta(0))
    assert len(logged(log, "duplicate skipped")) == 5
    broken = False
    await drain(hf)
    assert [found.status for found in await all_of(hf)] == [Status.DELIVERED]
    assert sorted(await query(hf, "select n from effect")) == [(0,), (1,), (2,), (3,), (4,)]


@SQLITE
async def test_a_thread_that_continues_after_its_timeout_and_the_retry_apply_the_effect_once(
    hf: Holdfast, stream: Stream
) -> None:
    path, runs = hf.dsn.removeprefix("sqlite:///"), []

    @straight(hf, stream, timeout="150ms", retry=RetryPolicy.fixed(0.01, attempts=3))
    def handle(ctx: Context, payment: dict[str, int]) -> None:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            time.sleep(0.8)
        with sqlite3.connect(path, timeout=10) as db:
            db.execute("create table if not exists effect (n integer)")
            db.execute("insert into effect values (?)", (payment["n"],))
            ctx.sync.complete(conn=db)
        db.close()

    stream.put({"n": 1})
    await drain(hf)
    assert runs == [1, 2]
    assert await query(hf, "select n from effect") == [(1,)]


@SQLITE
async def test_a_handler_longer_than_the_brokers_patience_keeps_its_record(hf: Holdfast, stream: Stream) -> None:
    source, runs = stream.source(ack_timeout="1s"), []

    # One at a time: while it runs, nothing is fetched that would show that it lives.
    @straight(hf, stream, source=source, concurrency=1)
    async def handle(payment: dict[str, int]) -> None:
        runs.append(payment["n"])
        await asyncio.sleep(2.5)

    stream.put({"n": 1})
    async with working(hf):
        await eventually(lambda: runs)
        async with source.open("rival") as rival:
            while stream.pending():
                assert await rival.fetch(10, 0.05) == []
    assert runs == [1]


@SQLITE
async def test_records_cancelled_at_shutdown_are_released_at_once(hf: Holdfast, stream: Stream) -> None:
    started, ids = asyncio.Event(), []

    @straight(hf, stream, source=stream.source(ack_timeout="1h"))
    async def handle(ctx: Context, payment: dict[str, int]) -> None:
        ids.append(ctx.message_id)
        started.set()
        if len(ids) == 1:
            await asyncio.sleep(3600)

    stream.put({"n": 1})
    async with working(hf, grace=timedelta(seconds=0.2)):
        await wait_for(started)
    assert stream.pending() == 1
    await drain(hf)
    assert stream.pending() == 0
    first, second = ids
    assert first == second


@SQLITE
async def test_a_second_stop_signal_does_not_wait_for_handlers(hf: Holdfast, stream: Stream) -> None:
    started = asyncio.Event()

    @straight(hf, stream, source=stream.source(ack_timeout="1h"))
    async def handle(payment: dict[str, int]) -> None:
        started.set()
        await asyncio.sleep(3600)

    stream.put({"n": 1})
    task = asyncio.create_task(hf.work(WorkerOptions(grace=timedelta(hours=1))))
    await wait_for(started)
    (worker,) = hf._runtime.notifier.workers
    worker.stop()
    # By now the worker itself, which has nothing to do, has ended.
    await asyncio.wait({task}, timeout=0.5)
    assert not task.done()
    worker.stop()
    await asyncio.wait_for(task, 20)
    (given_back,) = stream.client.xpending_range(stream.name, "shop", "-", "+", 9)
    assert given_back["time_since_delivered"] > 3_600_000


@SQLITE
async def test_a_record_that_crashes_its_workers_repeatedly_becomes_a_delivery(
    hf: Holdfast, stream: Stream, log: Log
) -> None:
    seen: list[int] = []

    @straight(hf, stream)
    async def handle(payment: dict[str, int]) -> None:
        seen.append(payment["n"])

    for n in range(2):
        stream.put({"n": n})
    stream.client.xgroup_create(stream.name, "shop", id="0")
    held = [id for _, found in stream.client.xreadgroup("shop", "dead", {stream.name: ">"}) for id, _ in found]
    for id, times in zip(held, (1, 9), strict=True):
        stream.client.xclaim(stream.name, "shop", "dead", 0, [id], idle=9_000, retrycount=times)
    await drain(hf)
    assert sorted(seen) == [0, 1]
    assert stream.pending() == 0
    assert (await only(hf)).status is Status.DELIVERED
    (line,) = logged(log, "redelivery limit reached")
    assert line["delivery_count"] == 10


@SQLITE
async def test_a_reused_id_with_other_content_is_stored_raw(hf: Holdfast, stream: Stream) -> None:
    @straight(hf, stream)
    async def handle(payment: dict[str, int]) -> None:
        raise TerminalError("no such account")

    for n in (1, 1, 2):
        stream.client.delete(stream.name)
        stream.put({"n": n}, id="5-1")
        await drain(hf)
    raw, first = await hf.ops.deliveries(Filter(dead=True))
    assert (raw.type, first.type) == ("holdfast.raw", "payment.settled")
    assert "other content" in (raw.delivery.last_error or "")
    assert stream.pending() == 0


@SQLITE
async def test_a_paused_consumer_runs_nothing_and_no_more_run_at_once_than_asked(hf: Holdfast, stream: Stream) -> None:
    running, most, done = 0, 0, []

    @straight(hf, stream, concurrency=3)
    async def handle(payment: dict[str, int]) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        done.append(payment["n"])

    await hf._runtime.registration.prepare()
    await hf.ops.pause_consumer("straight", actor="ada", reason="a check")
    for n in range(12):
        stream.put({"n": n})
    await drain(hf)
    assert done == []
    await hf.ops.resume_consumer("straight", actor="ada", reason="seen")
    await drain(hf)
    assert sorted(done) == list(range(12))
    assert most == 3


@SQLITE
async def test_a_consumer_deleted_in_mid_handler_loses_nothing(hf: Holdfast, stream: Stream) -> None:
    started, go, done = asyncio.Event(), asyncio.Event(), []

    @straight(hf, stream)
    async def handle(payment: dict[str, int]) -> None:
        started.set()
        await go.wait()
        done.append(payment["n"])

    stream.put({"n": 1})
    async with working(hf):
        await wait_for(started)
        for one in stream.client.xinfo_consumers(stream.name, "shop"):
            stream.client.xgroup_delconsumer(stream.name, "shop", one["name"])
        go.set()
        stream.put({"n": 2})
        await eventually(lambda: done == [1, 2])
        await eventually(lambda: stream.pending() == 0)


async def test_what_was_handled_long_ago_is_forgotten(hf: Holdfast, stream: Stream) -> None:
    @straight(hf, stream)
    async def handle(payment: dict[str, int]) -> None: ...

    await hf._runtime.registration.prepare()
    for consumer, key in [("straight", "old"), ("straight", "new"), ("another", "old")]:
        await hf.store.run(record_handled(consumer, "redis:payments", [key], UUID(int=1)))
    long_ago = {"sqlite": "handled_at - 60000", "postgres": "handled_at - interval '1 minute'"}[hf.store.dialect.name]
    await query(hf, f"update {{hf}}handled set handled_at = {long_ago} where key = 'old'")
    await HandledKeyPruner(hf.store, hf.broker_sources, timedelta(seconds=30)).perform("me")
    assert sorted(await query(hf, "select consumer, key from {hf}handled")) == [("another", "old"), ("straight", "new")]


@SQLITE
async def test_one_unreadable_record_is_kept_raw_here_too(hf: Holdfast, stream: Stream) -> None:
    done: list[int] = []

    @straight(hf, stream)
    async def handle(payment: dict[str, int]) -> None:
        done.append(payment["n"])

    stream.put(b"{")
    stream.put({"n": 1})
    await drain(hf)
    assert done == [1]
    assert len(await hf.ops.deliveries(Filter(dead=True))) == 1
