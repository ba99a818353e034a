"""Batch handlers, end to end: what they get, when they run, and what becomes of each item."""

import asyncio
import sqlite3
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from holdfast import (
    AlreadyCompleted,
    BatchContext,
    BatchError,
    Cancel,
    ConfigurationError,
    Context,
    Holdfast,
    LeaseLost,
    Limit,
    Outage,
    Queue,
    RetryPolicy,
    Snooze,
    TerminalError,
    event,
    upcast,
)
from holdfast.core.delivery import Status
from holdfast.stores.queries.time_travel import abandon
from holdfast.testing.harness import bind_app
from tests.engine.ways import AWAITING, BLOCKING, WAYS, configure_django
from tests.support.apps import MakeApp
from tests.support.worker import Log, all_of, drain, eventually, logged, pass_time, query, statuses, wait_for, working

AT_ONCE = RetryPolicy.fixed(0, attempts=3)


@event("clicked")
@dataclass
class Clicked:
    n: int


async def click(hf: Holdfast, *numbers: int) -> None:
    await hf.publish_many([Clicked(n) for n in numbers], conn=None)


async def by_number(hf: Holdfast) -> dict[int, Any]:
    """The deliveries by the number of their event."""
    payloads = dict(await query(hf, "select id, payload from {hf}message"))
    numbers = {str(id): value["n"] if isinstance(value, dict) else int(value[5:-1]) for id, value in payloads.items()}
    return {numbers[str(found.message_id)]: found for found in await all_of(hf)}


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("dsn", ["sqlite", "postgres16", "postgres18"], indirect=True)
async def test_a_handler_gets_full_batches_and_the_rest_when_its_time_has_come(hf: Holdfast, kind: str) -> None:
    seen: list[list[int]] = []
    if kind == "async":

        @hf.consumer(Clicked, name="clicks", batch=4, within="200ms")
        async def take(events: list[Clicked]) -> None:
            seen.append([one.n for one in events])
    else:

        @hf.consumer(Clicked, name="clicks", batch=4, within="200ms")
        def take_blocking(events: list[Clicked]) -> None:
            seen.append([one.n for one in events])

    await click(hf, *range(10))
    await drain(hf)
    assert sorted(map(len, seen)) == [2, 4, 4]
    assert sorted(n for batch in seen for n in batch) == list(range(10))
    assert {(d.status, d.attempts, d.expiries) for d in await all_of(hf)} == {(Status.DELIVERED, 1, 0)}


async def test_a_batch_runs_as_soon_as_it_is_complete(hf: Holdfast) -> None:
    sizes: list[int] = []

    @hf.consumer(Clicked, batch=3, within="1m")
    async def take(events: list[Clicked]) -> None:
        sizes.append(len(events))

    # A poll of a minute: only the wake-up of a publish can be in time.
    async with working(hf, poll=timedelta(minutes=1)):
        await click(hf, 1)
        await asyncio.sleep(0.2)
        await click(hf, 2, 3)
        await eventually(lambda: sizes == [3])
        await click(hf, 4, 5)
        await click(hf, 6)
        await eventually(lambda: sizes == [3, 3])


async def test_an_incomplete_batch_runs_when_its_time_has_come(hf: Holdfast) -> None:
    runs = asyncio.Queue[tuple[float, int]]()

    @hf.consumer(Clicked, batch=3, within="700ms")
    async def take(events: list[Clicked]) -> None:
        runs.put_nowait((time.monotonic(), len(events)))

    async with working(hf, poll=timedelta(minutes=1)):
        for _ in range(2):
            published = time.monotonic()
            await click(hf, 1)
            at, size = await asyncio.wait_for(runs.get(), 20)
            assert size == 1
            assert at - published > 0.69


async def test_batches_and_single_deliveries_share_one_slot(hf: Holdfast) -> None:
    order: list[str] = []

    @hf.consumer(Clicked, batch=2, within="10s")
    async def take(events: list[Clicked]) -> None:
        order.append("batch")

    @hf.job()
    async def single() -> None:
        order.append("single")

    for _ in range(3):
        await single.enqueue()
    await click(hf, *range(6))
    await drain(hf, concurrency=1)
    assert sorted(order) == ["batch"] * 3 + ["single"] * 3
    # Neither kind runs to its end before the other begins.
    assert order.index("batch") < 3
    assert order.index("single") < 3


async def test_the_items_that_are_named_fail_and_the_others_are_delivered(hf: Holdfast, log: Log) -> None:
    runs: list[list[int]] = []

    @hf.consumer(Clicked, batch=6, within="50ms", retry=AT_ONCE)
    async def take(events: list[Clicked]) -> None:
        runs.append([one.n for one in events])
        errors: dict[int, BaseException] = {}
        for index, one in enumerate(events):
            if one.n == 1:
                errors[index] = ValueError("again")
            if one.n == 2:
                errors[index] = TerminalError("never")
            if one.n == 3:
                errors[index] = Cancel("not wanted")
            if one.n == 4:
                errors[index] = Snooze("1h")
        if errors:
            raise BatchError(errors)

    await click(hf, *range(6))
    await drain(hf)
    found = await by_number(hf)
    assert {n: (d.status, d.attempts) for n, d in found.items()} == {
        0: (Status.DELIVERED, 1),
        1: (Status.FAILED, 3),
        2: (Status.FAILED, 1),
        3: (Status.FAILED, 1),
        4: (Status.PENDING, 0),
        5: (Status.DELIVERED, 1),
    }
    assert (found[1].last_error, found[2].last_error) == ("again", "never")
    assert found[3].discarded_at is not None
    assert (sorted(runs[0]), runs[1:]) == ([0, 1, 2, 3, 4, 5], [[1], [1]])
    assert [line["error"] for line in logged(log, "delivery retried")] == ["again", "again"]
    assert [(line["size"], line["delivered"]) for line in logged(log, "batch completed")] == [(6, 2), (1, 0), (1, 0)]


async def test_a_returned_batch_error_is_like_a_raised_one(hf: Holdfast) -> None:
    @hf.consumer(Clicked, batch=2, within="50ms", retry=RetryPolicy.none())
    async def take(events: list[Clicked]) -> BatchError:
        return BatchError({[one.n for one in events].index(1): ValueError("no")})

    await click(hf, 0, 1)
    await drain(hf)
    assert {n: d.status for n, d in (await by_number(hf)).items()} == {0: Status.DELIVERED, 1: Status.FAILED}


@pytest.mark.parametrize("wrong", [BatchError({2: ValueError("?")}), BatchError({-1: ValueError("?")})])
async def test_an_unknown_index_delivers_nothing(hf: Holdfast, wrong: BatchError) -> None:
    @hf.consumer(Clicked, batch=2, within="50ms")
    async def take(events: list[Clicked]) -> None:
        raise wrong

    await click(hf, 0, 1)
    await drain(hf)
    failed = await all_of(hf)
    assert [d.status for d in failed] == [Status.FAILED] * 2
    assert "the batch has items 0 to 1" in (failed[0].last_error or "")


@pytest.mark.parametrize("how", ["raised", "timed out", "snoozed"])
async def test_any_other_end_is_that_of_every_item(hf: Holdfast, how: str) -> None:
    @hf.consumer(Clicked, batch=3, within="50ms", retry=RetryPolicy.none(), timeout="100ms")
    async def take(events: list[Clicked]) -> object:
        if how == "raised":
            raise ValueError("all of them")
        if how == "snoozed":
            return Snooze("1h")
        await asyncio.sleep(10)
        return None

    await click(hf, 0, 1, 2)
    await drain(hf)
    expected = Status.PENDING if how == "snoozed" else Status.FAILED
    assert await statuses(hf) == [expected] * 3


async def test_an_item_that_cannot_be_decoded_is_dealt_with_alone(make_app: MakeApp) -> None:
    hf, seen = make_app(validate=False), list[int]()

    @hf.consumer(Clicked, batch=3, within="50ms")
    async def take(events: list[Clicked]) -> None:
        seen.extend(one.n for one in events)

    await hf.publish_many([Clicked(1), ("clicked", {"m": 2}), Clicked(3)], conn=None)
    await drain(hf)
    assert sorted(seen) == [1, 3]
    assert sorted(await statuses(hf)) == [Status.DELIVERED, Status.DELIVERED, Status.FAILED]


async def test_old_and_new_payloads_of_one_batch_are_converted(hf: Holdfast) -> None:
    @event("moved", version=2)
    @dataclass
    class Moved:
        x: int
        y: int

    @upcast(Moved, from_version=1)
    def with_y(old: dict[str, Any]) -> dict[str, Any]:
        return {**old, "y": 0}

    seen: list[Moved] = []

    @hf.consumer(Moved, batch=2, within="50ms")
    async def take(events: list[Moved]) -> None:
        seen.extend(events)

    await hf.publish_many([("moved", {"x": 1}), Moved(2, 3)], conn=None)
    await drain(hf)
    assert sorted((one.x, one.y) for one in seen) == [(1, 0), (2, 3)]


async def test_the_context_knows_the_items_in_the_order_of_the_list(hf: Holdfast) -> None:
    seen: list[tuple[Any, ...]] = []

    @hf.consumer(Clicked, batch=3, within="50ms", retry=AT_ONCE)
    async def take(ctx: BatchContext, events: list[Clicked]) -> None:
        assert (ctx.consumer, ctx.queue) == ("take", "default")
        seen.extend(
            (one.n, item.key, item.attempt, item.max_attempts) for one, item in zip(events, ctx.items, strict=True)
        )
        if len(events) == 3:
            raise BatchError({[one.n for one in events].index(2): ValueError("again")})

    for n in (1, 2, 3):
        await hf.publish(Clicked(n), conn=None, key=f"k{n}")
    await drain(hf)
    assert sorted(seen[:3]) == [(1, "k1", 1, 3), (2, "k2", 1, 3), (3, "k3", 1, 3)]
    assert seen[3:] == [(2, "k2", 2, 3)]


@pytest.mark.parametrize(("kind", "way"), WAYS)
async def test_completing_commits_the_effect_with_every_item(
    request: pytest.FixtureRequest, kind: str, way: str
) -> None:
    dsn = request.getfixturevalue("sqlite_dsn" if kind == "sqlite" else "postgres18_dsn")
    hf = Holdfast(dsn)
    if way == "django":
        configure_django(dsn)
    if way in BLOCKING[kind]:
        open = BLOCKING[kind][way]

        @hf.consumer(Clicked, name="take", batch=3, within="50ms", retry=AT_ONCE)
        def take(ctx: BatchContext, events: list[Clicked]) -> None:
            with open(dsn) as (conn, execute):
                for one in events:
                    execute(f"insert into effect (note) values ('{one.n}')")
                ctx.sync.complete(conn=conn)
            raise RuntimeError("after the commit")
    else:
        begin = AWAITING[kind][way]

        @hf.consumer(Clicked, name="take", batch=3, within="50ms", retry=AT_ONCE)
        async def take_async(ctx: BatchContext, events: list[Clicked]) -> None:
            async with begin(dsn) as (conn, execute):
                for one in events:
                    await execute(f"insert into effect (note) values ('{one.n}')")
                await ctx.complete(conn=conn)
            raise RuntimeError("after the commit")

    try:
        await click(hf, 0, 1, 2)
        await query(hf, "drop table if exists effect")  # other tests leave one of theirs
        await query(hf, "create table effect (note text)")
        await drain(hf)
        assert {(d.status, d.attempts) for d in await all_of(hf)} == {(Status.DELIVERED, 1)}
        assert sorted(await query(hf, "select note from effect")) == [("0",), ("1",), ("2",)]
    finally:
        await query(hf, "drop table effect")
        await hf.close()


async def test_a_second_completion_of_a_batch_is_named(sqlite_dsn: str) -> None:
    hf, errors = Holdfast(sqlite_dsn), list[Exception]()

    @hf.consumer(Clicked, batch=3, within="50ms", retry=AT_ONCE)
    def take(ctx: BatchContext, events: list[Clicked]) -> None:
        complete: Any = ctx.sync.complete
        conn = sqlite3.connect(sqlite_dsn.removeprefix("sqlite:///"), timeout=10)
        try:
            for options in ({}, {"conn": conn}, {"conn": conn}):
                try:
                    complete(**options)
                except (TypeError, LeaseLost) as error:
                    errors.append(error)
            conn.commit()
        finally:
            conn.close()

    await click(hf, 0, 1, 2)
    await drain(hf)
    await hf.close()
    assert "SyncBatchContext.complete() needs conn=" in str(errors[0])
    assert type(errors[1]) is AlreadyCompleted
    assert "the batch that starts with" in str(errors[1])


@pytest.mark.parametrize("how", ["rolled back", "one item lost"])
async def test_a_refused_completion_applies_nothing(sqlite_dsn: str, how: str) -> None:
    hf, runs = Holdfast(sqlite_dsn), list[int]()

    @hf.consumer(Clicked, batch=3, within="50ms", retry=AT_ONCE)
    def take(ctx: BatchContext, events: list[Clicked]) -> None:
        runs.append(len(events))
        conn = sqlite3.connect(sqlite_dsn.removeprefix("sqlite:///"), timeout=10)
        try:
            if how == "one item lost" and len(runs) == 1:
                hf.store.run_sync(abandon(ctx.items[1].delivery_id))
            conn.executemany("insert into effect (note) values (?)", [(one.n,) for one in events])
            try:
                ctx.sync.complete(conn=conn)
            except LeaseLost:
                conn.commit()  # a caught error commits nothing
                return
            if how == "rolled back" and len(runs) == 1:
                conn.rollback()
            conn.commit()
        finally:
            conn.close()

    await click(hf, 0, 1, 2)
    await query(hf, "create table effect (note text)")
    await drain(hf)
    assert await statuses(hf) == [Status.DELIVERED] * 3
    assert sorted(await query(hf, "select note from effect")) == [("0",), ("1",), ("2",)]
    assert len(runs) >= 2
    await hf.close()


async def test_an_item_that_was_lost_is_not_settled_by_the_batch(hf: Holdfast, log: Log) -> None:
    taken: list[int] = []

    @hf.consumer(Clicked, batch=2, within="50ms")
    async def take(ctx: BatchContext, events: list[Clicked]) -> None:
        taken.append(len(events))
        if len(taken) == 1:
            await hf.store.run(abandon(ctx.items[0].delivery_id))

    await click(hf, 0, 1)
    await drain(hf)
    assert await statuses(hf) == [Status.DELIVERED] * 2
    assert taken == [2, 1]
    assert len(logged(log, "lease lost")) == 1


async def test_a_stopping_worker_returns_the_batch_it_cuts_off(hf: Holdfast) -> None:
    started = asyncio.Event()

    @hf.consumer(Clicked, batch=2, within="50ms")
    async def take(events: list[Clicked]) -> None:
        started.set()
        await asyncio.sleep(60)

    async with working(hf, grace=timedelta(milliseconds=300)):
        await click(hf, 0, 1)
        await wait_for(started)
    assert {(d.status, d.attempts, d.holds) for d in await all_of(hf)} == {(Status.PENDING, 0, 1)}


async def test_waiting_batches_are_released_unstarted(hf: Holdfast) -> None:
    started = asyncio.Event()

    @hf.job()
    async def block() -> None:
        started.set()
        await asyncio.sleep(60)

    @hf.consumer(Clicked, batch=2, within="0s")
    async def take(events: list[Clicked]) -> None: ...

    async with working(hf, concurrency=1, grace=timedelta(milliseconds=300)):
        await block.enqueue()
        await wait_for(started)
        await click(hf, 0, 1)
    assert {(d.status, d.attempts, d.holds) for d in await all_of(hf, "take")} == {(Status.PENDING, 0, 0)}


async def test_a_crashed_batch_is_taken_over_and_its_items_run_again(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.consumer(Clicked, batch=3, within="50ms", retry=AT_ONCE)
    async def take(events: list[Clicked]) -> None:
        seen.append(len(events))

    with bind_app(hf, hf.dsn) as harness:
        await click(hf, 0, 1, 2)
        with harness.crash("take"):
            await harness.drain()
        assert {(d.status, d.attempts) for d in await all_of(hf)} == {(Status.DELIVERED, 2)}
        assert seen == [3]


async def test_after_a_second_crash_each_item_runs_alone(hf: Holdfast) -> None:
    @hf.consumer(Clicked, batch=3, within="50ms", retry=AT_ONCE)
    async def take(events: list[Clicked]) -> None:
        sizes.append(len(events))

    sizes: list[int] = []
    with bind_app(hf, hf.dsn) as harness:
        await click(hf, 0, 1, 2)
        with harness.crash("take", times=2):
            await harness.drain()
        assert {(d.status, d.suspect, d.attempts) for d in await all_of(hf)} == {(Status.PENDING, True, 2)}
        await drain(hf, suspects=True)
        assert sizes == [1, 1, 1]
        assert {(d.status, d.suspect) for d in await all_of(hf)} == {(Status.DELIVERED, False)}


async def test_one_crash_does_not_cost_the_last_attempt(hf: Holdfast) -> None:
    @hf.consumer(Clicked, batch=3, within="50ms", retry=RetryPolicy.fixed(0, attempts=2))
    async def take(events: list[Clicked]) -> None: ...

    with bind_app(hf, hf.dsn) as harness:
        await click(hf, 0, 1, 2)
        with harness.crash("take"):
            await harness.drain()
        assert {(d.status, d.suspect) for d in await all_of(hf)} == {(Status.PENDING, True)}
        await drain(hf, suspects=True)
        assert {(d.status, d.attempts) for d in await all_of(hf)} == {(Status.DELIVERED, 2)}


async def test_the_harness_fails_and_drains_batches(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.consumer(Clicked, batch=10, within="10m", retry=RetryPolicy.fixed("1h", attempts=3))
    async def take(events: list[Clicked]) -> None:
        seen.append(len(events))

    with bind_app(hf, hf.dsn) as harness:
        await click(hf, 0, 1, 2)
        with harness.fail("take", ValueError("not now")):
            await harness.drain()
        assert harness.statuses("take") == [Status.DELIVERED] * 3
        assert seen == [3]


async def test_an_outage_blocks_the_consumer_and_one_item_is_tried(hf: Holdfast) -> None:
    sizes: list[int] = []

    @hf.consumer(Clicked, batch=3, within="50ms")
    async def take(events: list[Clicked]) -> None:
        sizes.append(len(events))
        if len(sizes) == 1:
            raise Outage("warehouse")

    async with working(hf):
        await click(hf, 0, 1, 2)
        await eventually(lambda: sizes)
        await eventually(lambda: query(hf, "select 1 from {hf}consumer where blocked_until is not null"))
        # Their outcome may be written after the block; time that passes before it does not reach them.
        returned = "select count(*) from {hf}delivery where status = 'pending' having count(*) = 3"
        await eventually(lambda: query(hf, returned))
        await pass_time(hf, timedelta(minutes=10), "consumer", "delivery")
        await eventually(lambda: len(sizes) >= 3, f"{sizes}")
    assert sizes[:2] == [3, 1]
    assert {(d.status, d.attempts) for d in await all_of(hf)} == {(Status.DELIVERED, 1)}


async def test_known_keys_are_skipped_within_their_window(hf: Holdfast) -> None:
    seen: list[int] = []

    @hf.consumer(Clicked, batch=2, within="50ms", dedupe="1h")
    async def take(events: list[Clicked]) -> None:
        seen.extend(one.n for one in events)

    await click(hf, 1, 2)
    await drain(hf)
    await query(hf, "update {hf}delivery set status = 'pending', completed_at = null")
    await click(hf, 3)
    await drain(hf)
    assert sorted(seen) == [1, 2, 3]
    assert await statuses(hf) == [Status.DELIVERED] * 3


async def test_large_payloads_are_loaded_for_the_whole_batch(make_app: MakeApp) -> None:
    hf, seen = make_app(), list[int]()

    @hf.consumer("text.stored", batch=3, within="50ms")
    async def take(events: list[dict[str, str]]) -> None:
        seen.append(sum(len(one["text"]) for one in events))

    await hf.publish_many([("text.stored", {"text": "x" * 100_000})] * 2 + [("text.stored", {"text": "x"})], conn=None)
    await drain(hf)
    assert seen == [200_001]


async def test_metrics_count_each_item_and_the_time_once(hf: Holdfast) -> None:
    @hf.consumer(Clicked, batch=4, within="50ms")
    async def take(events: list[Clicked]) -> None:
        await asyncio.sleep(0.2)

    await click(hf, 0, 1, 2, 3)
    await drain(hf)
    families = {family.name: family for family in hf.meter.families()}
    (claims,) = families["holdfast_claims_total"].samples
    assert claims.value == 4
    done = [one.value for one in families["holdfast_runs_total"].samples if one.labels["operation"] == "deliver"]
    assert done == [4]
    (ran,) = families["holdfast_run_seconds"].samples
    assert 0.2 <= ran.value.sum < 0.7  # type: ignore[union-attr]


async def test_log_lines_of_a_batch_name_no_single_delivery(hf: Holdfast, log: Log) -> None:
    import structlog

    @hf.job()
    async def single() -> None: ...

    @hf.consumer(Clicked, batch=2, within="100ms")
    async def take(events: list[Clicked]) -> None:
        structlog.get_logger().info("inside")

    await single.enqueue()
    await click(hf, 0, 1)
    await drain(hf, concurrency=1)
    (line,) = logged(log, "inside")
    assert (line["consumer"], line["batch"]) == ("take", 2)
    assert not {"event_id", "attempt", "event_type"} & line.keys()


class TestDeclaration:
    """What a declaration refuses, with the remedy."""

    @pytest.mark.parametrize("batch", [0, -1, 1001, True, 2.5, "10"])
    def test_a_size_that_is_no_number_of_items(self, hf: Holdfast, batch: Any) -> None:
        with pytest.raises(ConfigurationError, match="1 to 1,000"):

            @hf.consumer(Clicked, batch=batch)
            async def take(events: list[Clicked]) -> None: ...

    def test_a_time_without_a_batch(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="give batch= as well"):

            @hf.consumer(Clicked, within="2s")
            async def take(event: Clicked) -> None: ...

    @pytest.mark.parametrize("within", ["soon", -1, float("nan")])
    def test_a_time_that_is_none(self, hf: Holdfast, within: Any) -> None:
        with pytest.raises(ConfigurationError, match="within"):

            @hf.consumer(Clicked, batch=10, within=within)
            async def take(events: list[Clicked]) -> None: ...

    def test_a_function_of_one_event(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match=r"take \(events: list\[Clicked\]\)"):

            @hf.consumer(Clicked, batch=10)
            async def take(event: Clicked) -> None: ...

    def test_a_list_of_another_class(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match=r"list\[Clicked\]"):

            @hf.consumer(Clicked, batch=10)
            async def take(events: list[TestDeclaration]) -> None: ...

    def test_a_context_of_one_delivery(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="import BatchContext"):

            @hf.consumer(Clicked, batch=10)
            async def take(ctx: Context, events: list[Clicked]) -> None: ...

    def test_a_function_without_parameters(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="must take"):

            @hf.consumer(Clicked, batch=10)
            async def take() -> None: ...

    def test_a_list_without_batch(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="batch=100"):

            @hf.consumer(Clicked)
            async def take(events: list[Clicked]) -> None: ...

    def test_a_job(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="batch= is for consumers"):

            @hf.job(batch=10)
            async def send(calls: list[int]) -> None: ...

    def test_a_limit_on_the_same_consumer(self, hf: Holdfast) -> None:
        with pytest.raises(ConfigurationError, match="batch= and limit= cannot be combined"):

            @hf.consumer(Clicked, batch=10, limit=Limit(2))
            async def take(events: list[Clicked]) -> None: ...

    def test_a_queue_with_a_limit(self, sqlite_dsn: str) -> None:
        hf = Holdfast(sqlite_dsn, queues=[Queue("mail", limit=Limit(2))])

        @hf.consumer(Clicked, batch=10, queue="mail")
        async def take(events: list[Clicked]) -> None: ...

        with pytest.raises(ConfigurationError, match="another queue="):
            hf.sync.publish(Clicked(1), conn=None)

    async def test_a_queue_with_a_limit_of_another_app(self, make_app: MakeApp) -> None:
        other = make_app(queues=[Queue("mail", limit=Limit(1))])
        await other.publish("other", {}, conn=None)
        hf, declaring = make_app(), make_app(queues=[Queue("mail")])
        for app in (hf, declaring):

            @app.consumer(Clicked, batch=10, queue="mail")
            async def take(events: list[Clicked]) -> None: ...

        with pytest.raises(ConfigurationError, match="another queue=, or declare Queue\\('mail'\\)"):
            await hf.publish(Clicked(1), conn=None)
        assert "take" not in [one.name for one in await hf.ops.consumers()], "nothing was registered"
        await declaring.publish(Clicked(1), conn=None)
        await hf.publish(Clicked(2), conn=None)

    @pytest.mark.parametrize("errors", [{}, {0: "no"}, {"0": ValueError()}, [ValueError()]])
    def test_an_error_that_names_no_item(self, errors: Any) -> None:
        with pytest.raises(ConfigurationError, match="BatchError got"):
            BatchError(errors)

    def test_what_fits(self, hf: Holdfast) -> None:
        from collections.abc import Iterable, Sequence

        @hf.consumer(Clicked, batch=10)
        async def one(events: Sequence[Clicked]) -> None: ...

        @hf.consumer(Clicked, batch=10, name="two")
        async def two(ctx: BatchContext, events: Iterable[Clicked]) -> None: ...

        @hf.consumer("order.*", batch=1, within=0, name="three")
        def three(events): ...

        assert hf.handlers["one"].batch is not None
        assert not hf.handlers["one"].takes_context
        assert hf.handlers["two"].takes_context
