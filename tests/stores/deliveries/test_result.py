"""Results: written in the transaction of their settlement, read only under the fence of their delivery."""

from datetime import timedelta

import pytest

from holdfast.core.change import Deliver, DeliverResult
from holdfast.core.delivery import Status
from holdfast.core.identity import first_id
from holdfast.stores.admin.actions import replay
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.deliveries.result import (
    DeliveryOutcome,
    KeptResult,
    forget_results,
    keep_results,
    outcomes,
    result_of,
)
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.messages.prune import FROM_THE_START, prune_deliveries
from holdfast.stores.operation import Operation, Query
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from tests.stores.concurrency.query_hook import before_each_query
from tests.support.builders import age, claim_all, claim_one, delivery, finish, job, outcome, put, sql

HOUR = timedelta(hours=1)


async def read(store: Store, claimed: Claimed) -> DeliveryOutcome:
    (found,) = await store.run(outcomes(claimed.message_id))
    return found


async def rows(store: Store) -> int:
    ((count,),) = sql(store, "select count(*) from {hf}result")
    return int(str(count))


async def test_a_batch_stores_the_results_of_the_claims_that_it_settled(store: Store) -> None:
    await put(store, *(job() for _ in range(4)))
    first, second, third, plain = await claim_all(store, "w1")
    lost = third._replace(fence=third.fence - 1)
    settled = await store.run(
        settle(
            "w1",
            [
                outcome(first, DeliverResult('{"n":1}', HOUR)),
                outcome(second, DeliverResult("null", HOUR), keep_run=True),
                outcome(lost, DeliverResult('"lost"', HOUR)),
                outcome(plain, Deliver()),
            ],
        )
    )
    assert settled == {first.id, second.id, plain.id}
    found = [(one.status, one.result) for one in [await read(store, one) for one in (first, second, third, plain)]]
    done = Status.DELIVERED
    assert [(status, text and text.replace(" ", "")) for status, text in found] == [
        (done, '{"n":1}'),
        (done, "null"),
        (Status.IN_FLIGHT, None),
        (done, None),
    ]
    assert await rows(store) == 2


async def test_a_result_and_its_settlement_commit_together(store: Store) -> None:
    claimed = await claim_one(store)

    def stop(query: Query) -> None:
        if query.name == "keep_results":
            raise KeyboardInterrupt

    operation = settle("w1", [outcome(claimed, DeliverResult("1", HOUR))])
    with pytest.raises(KeyboardInterrupt):
        await store.run(before_each_query(operation, stop))
    assert ((await delivery(store, claimed.id)).status, await rows(store)) == (Status.IN_FLIGHT, 0)
    assert await store.run(operation) == {claimed.id}
    assert (await read(store, claimed)).result == "1"


async def test_only_a_settled_claim_gets_a_result(store: Store) -> None:
    claimed = await claim_one(store)

    async def keep(fence: int) -> None:
        await store.run(Operation(lambda: keep_results([KeptResult(claimed.id, fence, "1", HOUR)])))

    await keep(claimed.fence)
    assert await rows(store) == 0
    assert await finish(store, claimed, Deliver())
    await keep(claimed.fence - 1)
    assert await rows(store) == 0
    await keep(claimed.fence)
    assert await rows(store) == 1


async def test_a_replay_hides_the_result_until_it_is_replaced(store: Store) -> None:
    claimed = await claim_one(store)
    assert await finish(store, claimed, DeliverResult("1", HOUR))
    assert await store.run(replay([claimed.id], "ada", None, rerun=True))
    assert ((await read(store, claimed)).result, await store.run(result_of(claimed.id))) == (None, None)
    (again,) = await claim_all(store)
    age(store, timedelta(minutes=30), "result")
    assert await finish(store, again, DeliverResult("2", HOUR))
    age(store, timedelta(minutes=45), "result")
    found = await store.run(result_of(claimed.id))
    assert found is not None
    assert ((await read(store, claimed)).result, found.result, await rows(store)) == ("2", "2", 1)


async def test_an_expired_result_is_not_read_and_removed(store: Store) -> None:
    claimed = await claim_one(store)
    assert await finish(store, claimed, DeliverResult("1", HOUR))
    age(store, timedelta(minutes=59), "result")
    await store.run(forget_results())
    assert (await read(store, claimed)).result == "1"
    age(store, timedelta(minutes=2), "result")
    assert ((await read(store, claimed)).result, await store.run(result_of(claimed.id))) == (None, None)
    await store.run(forget_results())
    assert await rows(store) == 0


async def _prune(store: Store) -> None:
    age(store, 2 * HOUR, "delivery")
    top = first_id(await store.run(clock()) + timedelta(days=1))
    assert (await store.run(prune_deliveries(FROM_THE_START, top, HOUR)))[0] == 1


async def test_a_result_outlives_its_delivery_until_it_expires(store: Store) -> None:
    claimed = await claim_one(store)
    assert await finish(store, claimed, DeliverResult("1", 24 * HOUR))
    await _prune(store)
    kept = (claimed.id, claimed.consumer, None, Status.DELIVERED, False, None, None, "1")
    assert await store.run(outcomes(claimed.message_id)) == [kept]
    age(store, 24 * HOUR, "result")
    assert await store.run(outcomes(claimed.message_id)) == []


async def test_the_result_of_an_earlier_cycle_goes_with_its_delivery(store: Store) -> None:
    claimed = await claim_one(store)
    assert await finish(store, claimed, DeliverResult("1", 24 * HOUR))
    assert await store.run(replay([claimed.id], "ada", None, rerun=True))
    (again,) = await claim_all(store)
    assert await finish(store, again, Deliver())
    await _prune(store)
    assert await store.run(outcomes(claimed.message_id)) == []


async def test_large_results_are_written_in_several_statements(store: Store) -> None:
    await put(store, *(job() for _ in range(5)))
    claims = await claim_all(store, "w1")
    text = '"' + "x" * 1_900_000 + '"'
    written: list[int] = []

    def count(query: Query) -> None:
        if query.name == "keep_results":
            written.append(len(query.batches["results"]["result"]))

    operation = settle("w1", [outcome(one, DeliverResult(text, HOUR)) for one in claims])
    assert len(await store.run(before_each_query(operation, count))) == 5
    assert (written, await rows(store)) == ([2, 2, 1], 5)
