"""The last hour and the way of a request: exact where little happens, bounded where much does."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.errors import ConfigurationError
from holdfast.core.identity import uuid7
from holdfast.core.telemetry.correlation import correlate
from holdfast.ops.queries import throughput as trend
from holdfast.ops.service import Operations
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store
from holdfast.stores.queries import throughput as stored
from tests.support.builders import claim_all, failure, finish, message, put, register_consumers, sql

pytestmark = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)


_SKIPPED = "select m.id from {{hf}}message m where m.position % {every} <> 0"


def _minute_before(now: datetime) -> int:
    return int(now.replace(second=0, microsecond=0).timestamp() * 1000) - 60_000


async def test_a_quiet_hour_is_counted_exactly(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.placed"], "mail": ["order.placed"]})
    await put(store, *(message() for _ in range(3)))
    for claimed in await claim_all(store, consumers=["billing"]):
        await finish(store, claimed, Deliver())
    (dead, *_) = await claim_all(store, consumers=["mail"])
    await finish(store, dead, DeadLetter(), error=failure())
    minutes = await ops.trend()
    assert len(minutes) == 60
    assert [later.at - one.at for one, later in pairwise(minutes)] == [timedelta(minutes=1)] * 59
    assert not any(one.estimated for one in minutes)
    assert sum(one.accepted for one in minutes[-2:]) == 6
    assert sum(one.delivered for one in minutes[-2:]) == 3
    assert sum(one.failed for one in minutes[-2:]) == 1
    assert sum(one.died for one in minutes[-2:]) == 1


async def test_an_hour_is_counted_exactly_although_a_minute_is_dense(store: Store, ops: Operations) -> None:
    """The first 300 of 320 deliveries of a minute are done; a sample of the first ones shows none of the others."""
    await register_consumers(store, {"billing": ["order.placed"]})
    begin = _minute_before(await ops.now())
    await put(store, *(message()._replace(id=uuid7(begin + 100 * n, 0)) for n in range(320)))
    for n, claimed in enumerate(sorted(await claim_all(store, limit=500), key=lambda one: one.id)):
        if n < 300:
            await finish(store, claimed, Deliver())
        elif n < 310:
            await finish(store, claimed, DeadLetter(), error=failure())
    minute = {one.at: one for one in await ops.trend()}[datetime.fromtimestamp(begin / 1000, UTC)]
    assert (minute.accepted, minute.failed, minute.margin) == (320, 10, 0)
    assert abs(minute.delivered - 300) <= 32, "read from a sample of the minute: within 10 %"


@pytest.mark.parametrize("every", [1, 3])
async def test_a_busy_hour_is_estimated_within_its_margin(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """Positions are skipped where a publish was rolled back, and a message has one delivery or two."""
    monkeypatch.setattr(trend, "EXACT", 100)
    monkeypatch.setattr(trend, "_STRETCH", 50)
    await register_consumers(store, {"billing": ["order.placed", "order.paid"], "mail": ["order.placed"]})
    begin = _minute_before(await ops.now())
    kinds = ["order.placed", "order.paid"]
    busy = [message(kinds[n % 2])._replace(id=uuid7(begin + 90 * n, 0)) for n in range(600)]
    later = message()._replace(id=uuid7(begin + 61_000, 0))
    await put(store, *busy, later)
    if every > 1:
        sql(store, f"delete from {{hf}}delivery where message_id in ({_SKIPPED.format(every=every)})")
        sql(store, f"delete from {{hf}}message where position % {every} <> 0 and id < '{later.id}'")
    minute = {one.at: one for one in await ops.trend()}[datetime.fromtimestamp(begin / 1000, UTC)]
    made = len(sql(store, f"select 1 from {{hf}}delivery where id < '{later.id}'"))
    assert minute.estimated
    assert 0 < minute.margin < made / 4
    assert abs(minute.accepted - made) <= minute.margin, (minute, made)


async def test_what_is_retried_is_gathered_by_consumer_and_error(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.placed"], "mail": ["order.placed"]})
    await put(store, *(message() for _ in range(3)))
    for claimed in await claim_all(store):
        error = failure(f"{claimed.consumer} is out", TimeoutError if claimed.consumer == "mail" else OSError)
        await finish(store, claimed, Retry(timedelta(hours=1)), error=error)
    await put(store, message())
    found = [(one.consumer, one.error_type, one.count, one.last_error) for one in await ops.retrying()]
    assert found == [("billing", "OSError", 3, "billing is out"), ("mail", "TimeoutError", 3, "mail is out")]
    assert all(one.since is not None for one in await ops.retrying())


async def test_a_request_is_followed_by_its_id_alone(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.placed"]})
    await put(store, message(headers={"request_id": "r-1"}), message(headers={"request_id": "r-2"}), message())
    for claimed in await claim_all(store):
        await finish(store, claimed, DeadLetter(), error=failure())
    with correlate(request_id="r-1"):
        await ops.pause_consumer("billing", actor="ada")
    trail = await ops.trace_request("r-1")
    (step,) = trail.steps
    assert step.message.headers == {"request_id": "r-1"}
    assert [[run.outcome for run in one.runs] for one in step.deliveries] == [["failed"]]
    assert [(entry.actor, entry.action) for entry in trail.audit] == [("ada", "pause")]
    assert trail.next is None
    nothing = await ops.trace_request("r-3")
    assert (nothing.steps, nothing.audit) == ((), ())


async def test_a_request_that_led_to_very_much_is_read_in_pages(store: Store, ops: Operations) -> None:
    await register_consumers(store, {name: ["order.placed"] for name in ("a", "b", "c")})
    published = [message(headers={"request_id": "r-1"}) for _ in range(45)]
    await put(store, *published)
    with correlate(request_id="r-1"):
        await ops.pause_consumer("a", actor="ada")
    trails = [await ops.trace_request("r-1")]
    while (following := trails[-1].next) is not None:
        trails.append(await ops.trace_request("r-1", after=following))
    assert [len(trail.steps) for trail in trails] == [20, 20, 5]
    assert [len(trail.audit) for trail in trails] == [1, 0, 0], "on the first page"
    found = [step.message.id for trail in trails for step in trail.steps]
    assert found == sorted(one.id for one in published)
    for trail in trails:
        for step in trail.steps:
            assert [one.listed.delivery.consumer for one in step.deliveries] == ["a", "b", "c"]
    assert (await ops.trace_request("r-1", limit=45)).next is None
    with pytest.raises(ConfigurationError, match="1 to 100"):
        await ops.trace_request("r-1", limit=101)


async def test_a_page_of_a_trail_asks_as_often_for_many_messages_as_for_one(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register_consumers(store, {name: ["order.placed"] for name in ("a", "b")})
    await put(store, message(headers={"request_id": "one"}))
    await put(store, *(message(headers={"request_id": "many"}) for _ in range(30)))
    for claimed in await claim_all(store, limit=100):
        await finish(store, claimed, DeadLetter(), error=failure())
    asked: list[Operation[Any]] = []
    run = store.run

    async def watched(_: Store, operation: Operation[Any]) -> Any:
        asked.append(operation)
        return await run(operation)

    monkeypatch.setattr(type(store), "run", watched)
    await ops.trace_request("one")
    once = len(asked)
    trail = await ops.trace_request("many")
    assert len(asked) - once == once <= 6
    assert all(one.runs[0].outcome == "failed" for step in trail.steps for one in step.deliveries)


async def test_a_message_with_very_many_deliveries_shows_the_first_on_a_trail(store: Store, ops: Operations) -> None:
    await register_consumers(store, {f"c{n:02}": ["order.placed"] for n in range(52)})
    await put(store, message(headers={"request_id": "r-1"}))
    (step,) = (await ops.trace_request("r-1")).steps
    assert (len(step.deliveries), step.more) == (50, True)


async def test_a_range_is_divided_into_at_most_61_slots_that_cover_it(store: Store, ops: Operations) -> None:
    now = await ops.now()
    for span in (timedelta(seconds=1), timedelta(minutes=7), timedelta(hours=30), timedelta(days=4000)):
        slots = await ops.trend(since=now - span, until=now)
        assert len(slots) <= 61
        assert slots[0].at <= now - span < slots[0].until
        assert slots[-1].at < now <= slots[-1].until
        assert all(one.until == later.at for one, later in pairwise(slots))
    with pytest.raises(ConfigurationError, match="must be before"):
        await ops.trend(since=now, until=now)


async def test_a_range_from_before_1970_begins_there(ops: Operations) -> None:
    slots = await ops.trend(since=datetime.min.replace(tzinfo=UTC))
    assert slots[0].at == datetime(1970, 1, 1, tzinfo=UTC)


async def test_a_range_long_ago_is_counted_by_its_slots(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.placed"]})
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    days = [0, 0, 3, 9]
    await put(
        store,
        *(
            message()._replace(id=uuid7(int(begin.timestamp() * 1000) + day * 86_400_000, n))
            for n, day in enumerate(days)
        ),
    )
    slots = await ops.trend(since=begin, until=begin + timedelta(days=10))
    assert slots[0].width == timedelta(hours=6)
    assert {(one.at - begin).days: one.accepted for one in slots if one.accepted} == {0: 2, 3: 1, 9: 1}


async def test_beyond_the_budget_failed_deliveries_are_a_lower_bound(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    await register_consumers(store, {"billing": ["order.placed"]})
    await put(store, *(message() for _ in range(9)))
    for claimed in await claim_all(store):
        await finish(store, claimed, DeadLetter(), error=failure())
    now = await ops.now()
    monkeypatch.setattr(stored, "BUDGET", 8)
    monkeypatch.setattr(trend, "BUDGET", 8)
    (*_, exact) = [one for one in await ops.trend(since=now - timedelta(hours=1)) if one.died]
    assert exact.or_more
    assert 0 < exact.died < 9
