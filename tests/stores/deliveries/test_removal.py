"""Settlements that remove the rows: of claims that are still held, with the message if nothing else needs it."""

from datetime import timedelta

import pytest

from holdfast.core.change import Deliver, DeliverResult, Remove, Retry
from holdfast.core.message import Address
from holdfast.stores.admin.actions import replay
from holdfast.stores.deliveries.progress import ReportedProgress, report_progress
from holdfast.stores.deliveries.result import outcomes
from holdfast.stores.deliveries.settle import absent, settle
from holdfast.stores.operation import Query
from holdfast.stores.protocol import Store
from tests.stores.concurrency.query_hook import before_each_query
from tests.support.builders import (
    all_deliveries,
    claim_all,
    claim_one,
    failure,
    finish,
    job,
    message,
    outcome,
    put,
    register_consumers,
    sql,
)

HOUR, NOW = timedelta(hours=1), timedelta(0)
TABLES = ("delivery", "message", "run", "progress", "result")


def counts(store: Store) -> list[int]:
    """The rows of the tables that a removal touches."""
    return [int(str(sql(store, f"select count(*) from {{hf}}{table}")[0][0])) for table in TABLES]


async def test_a_held_claim_goes_with_its_message_and_all_that_belongs_to_it(store: Store) -> None:
    failed = await claim_one(store)
    await finish(store, failed, Retry(NOW), error=failure())
    await put(store, job(), job())
    claims = {one.id: one for one in await claim_all(store)}
    again, lost, other = claims.pop(failed.id), *claims.values()
    await store.run(report_progress([ReportedProgress(again.id, again.fence, 0.5, None)]))
    assert counts(store) == [3, 3, 1, 1, 0]
    stale = lost._replace(fence=lost.fence - 1)
    assert await store.run(settle("w2", [outcome(again, Remove())])) == frozenset()
    removed = await store.run(
        settle("w1", [outcome(again, Remove()), outcome(stale, Remove()), outcome(other, Deliver())])
    )
    assert removed == {again.id, other.id}
    assert counts(store) == [2, 2, 0, 0, 0]
    assert await store.run(absent([again.id, lost.id])) == {again.id}
    assert await store.run(settle("w1", [outcome(again, Remove())])) == frozenset()


async def test_a_message_that_something_else_needs_stays(store: Store) -> None:
    await register_consumers(store, {"audit": ["order.*"]})
    both = message("job.mail", addressed=[Address(consumer="mail"), Address(consumer="push")])
    keyed, event = job(key="k1"), message()
    await put(store, both)
    await put(store, keyed)
    await put(store, event)
    first, *rest = claims = sorted(await claim_all(store), key=lambda one: one.message_id != both.id)
    assert len(claims) == 4
    assert await store.run(settle("w1", [outcome(first, Remove())])) == {first.id}
    assert counts(store)[:2] == [3, 3]
    assert await store.run(settle("w1", [outcome(one, Remove()) for one in rest])) == {one.id for one in rest}
    kept = {str(id) for (id,) in sql(store, "select id from {hf}message")}
    assert kept == {str(keyed.id), str(event.id)}
    # The key still means the job that was done.
    (again,) = await put(store, job(key="k1"))
    assert (again.id, again.created) == (keyed.id, False)
    assert await all_deliveries(store) == []


async def test_two_deliveries_of_a_message_that_end_together_take_it_with_them(store: Store) -> None:
    await put(store, message("job.mail", addressed=[Address(consumer="mail"), Address(consumer="push")]))
    claims = await claim_all(store)
    await store.run(settle("w1", [outcome(one, Remove()) for one in claims]))
    assert counts(store) == [0, 0, 0, 0, 0]


async def test_a_result_stays_without_its_delivery_and_that_of_an_earlier_cycle_goes(store: Store) -> None:
    await put(store, job(), job())
    first, second = await claim_all(store)
    done = [outcome(first, DeliverResult("1", HOUR, remove=True)), outcome(second, DeliverResult("2", HOUR))]
    assert await store.run(settle("w1", done)) == {first.id, second.id}
    assert counts(store) == [1, 1, 0, 0, 2]
    assert [one.result for one in await store.run(outcomes(first.message_id))] == ["1"]
    await store.run(replay([second.id], "ada", "again", rerun=True))
    (again,) = await claim_all(store)
    await store.run(settle("w1", [outcome(again, Remove())]))
    assert counts(store) == [0, 0, 0, 0, 1]


async def test_only_a_delivered_row_is_removed_after_its_completion(store: Store) -> None:
    await put(store, job(), job())
    done, running = await claim_all(store)
    await finish(store, done, Deliver())
    completed = [outcome(one, Remove(completed=True)) for one in (done, running)]
    assert await store.run(settle("w1", [one._replace(fence=one.fence + 1) for one in completed])) == frozenset()
    assert await store.run(settle("w1", completed)) == {done.id}
    assert counts(store)[:2] == [1, 1]


async def test_a_removal_and_the_rest_of_its_batch_commit_together(store: Store) -> None:
    await put(store, *(job() for _ in range(3)))
    first, second, third = await claim_all(store)
    batch = [
        outcome(first, Deliver()),
        outcome(second, Remove()),
        outcome(third, DeliverResult("1", HOUR, remove=True)),
    ]
    names: list[str] = []
    await _note(store, settle("w2", batch), names)
    assert names == ["settle_delivered", "remove_deliveries", "settle"]
    for last in ("remove_deliveries", "settle", "keep_results"):

        def stop(query: Query, last: str = last) -> None:
            if query.name == last:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await store.run(before_each_query(settle("w1", batch), stop))
        assert counts(store) == [3, 3, 0, 0, 0]
    assert len(await store.run(settle("w1", batch))) == 3
    assert counts(store) == [1, 1, 0, 0, 1]


async def _note(store: Store, operation: object, names: list[str]) -> None:
    await store.run(before_each_query(operation, lambda query: names.append(query.name)))  # type: ignore[arg-type]
