"""The last hour and the way of a request: exact where little happens, bounded where much does."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.correlation import correlate
from holdfast.core.identity import uuid7
from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from tests.stores.build import claim_all, failure, finish, message, put, register_consumers

pytestmark = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)


async def test_a_quiet_hour_is_told_exactly(store: Store, ops: Operations) -> None:
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


async def test_a_busy_minute_is_estimated_from_a_sample(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.placed"], "mail": ["order.placed"]})
    now = await ops.now()
    begin = int(now.replace(second=0, microsecond=0).timestamp() * 1000) - 60_000
    busy = [message()._replace(id=uuid7(begin + n, 0)) for n in range(300)]
    later = [message()._replace(id=uuid7(begin + 61_000, 0))]
    await put(store, *busy)
    await put(store, *later)
    minute = {one.at: one for one in await ops.trend()}[datetime.fromtimestamp(begin / 1000, UTC)]
    assert minute.estimated
    assert minute.accepted == 600


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
    trail = await ops.follow("r-1")
    (step,) = trail.steps
    assert step.message.headers == {"request_id": "r-1"}
    assert [[run.outcome for run in one.runs] for one in step.deliveries] == [["failed"]]
    assert [(entry.actor, entry.action) for entry in trail.audit] == [("ada", "pause")]
    assert not trail.more
    nothing = await ops.follow("r-3")
    assert (nothing.steps, nothing.audit) == ((), ())


async def test_a_request_that_led_to_very_much_is_shown_in_part(store: Store, ops: Operations) -> None:
    await register_consumers(store, {name: ["order.placed"] for name in ("a", "b", "c")})
    await put(store, *(message(headers={"request_id": "r-1"}) for _ in range(31)))
    trail = await ops.follow("r-1")
    assert trail.more
    assert len(trail.steps) == 30
    assert sum(len(step.deliveries) for step in trail.steps) == 60
