"""The activity that `holdfast tail` follows: each change once, also late commits and old deliveries that fail."""

from datetime import timedelta

import pytest

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.errors import ConfigurationError
from holdfast.core.identity import uuid7
from holdfast.ops.queries.activity import LATE, Activity
from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.support.builders import age, claim_all, failure, finish, message, put, register_consumers

pytestmark = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)


def shown(found: Activity) -> list[tuple[str, str, int]]:
    return sorted((one.delivery.consumer, one.delivery.status.value, one.delivery.attempts) for one in found.changed)


async def test_each_change_is_returned_once(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.placed"], "mail": ["order.placed"]})
    await put(store, message())
    age(store, timedelta(hours=1), "delivery")
    (old,) = await claim_all(store, consumers=["mail"])
    begin = await ops.now()
    first = await ops.activity(since=begin + timedelta(milliseconds=1))
    assert shown(first) == []
    await put(store, message()._replace(id=uuid7(int((begin + timedelta(seconds=1)).timestamp() * 1000), 0)))
    new = await ops.activity(cursor=first.cursor)
    assert shown(new) == [("billing", "pending", 0), ("mail", "pending", 0)]
    again = await ops.activity(cursor=new.cursor)
    assert (shown(again), again.more) == ([], False)
    # An old delivery fails, and new ones end; one is retried.
    await finish(store, old, DeadLetter(), error=failure())
    for claimed in await claim_all(store, consumers=["billing"]):
        await finish(store, claimed, Deliver())
    (retried,) = await claim_all(store, consumers=["mail"])
    await finish(store, retried, Retry(timedelta(hours=1)), error=failure())
    ended = await ops.activity(cursor=again.cursor)
    assert shown(ended) == [("billing", "delivered", 1), ("mail", "failed", 1), ("mail", "pending", 1)]
    assert shown(await ops.activity(cursor=ended.cursor)) == []
    only = await ops.activity(Filter(consumers=("mail",)), cursor=again.cursor)
    assert shown(only) == [("mail", "failed", 1), ("mail", "pending", 1)]


async def test_a_transaction_that_commits_late_is_not_missed(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": ["order.placed"]})
    start = await ops.activity(since=await ops.now() - timedelta(minutes=1))
    moment = int((start.now - LATE / 2).timestamp() * 1000)
    await put(store, message()._replace(id=uuid7(moment, 0)))
    assert shown(await ops.activity(cursor=start.cursor)) == [("mail", "pending", 0)]


async def test_a_state_is_no_filter_of_activity(ops: Operations) -> None:
    with pytest.raises(ConfigurationError, match="filter the deliveries that it returns"):
        await ops.activity(Filter(dead=True))
