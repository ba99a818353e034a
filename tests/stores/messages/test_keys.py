"""Keys: one (source, key) names one message for ever; a unique job exists once while it is unfinished."""

import pytest

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.errors import ConfigurationError, KeyConflict
from holdfast.stores.admin.actions import cancel
from holdfast.stores.messages.fanout import Fanout, Subscriptions
from holdfast.stores.messages.publish import Published, publish
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import messages
from tests.support.builders import (
    SECOND,
    all_deliveries,
    claim_all,
    failure,
    finish,
    job,
    message,
    put,
    register_consumers,
    sql,
)


def stored(store: Store) -> tuple[object, ...]:
    """How many messages and deliveries there are."""
    (row,) = sql(store, "select (select count(*) from {hf}message), (select count(*) from {hf}delivery)")
    return row


async def test_a_key_published_twice_returns_the_first_message(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]})
    (first,) = await put(store, message(key="order:1", payload={"a": 1, "b": [1.0, "ü"]}))
    (second,) = await put(store, message(key="order:1", payload={"b": [1.0, "ü"], "a": 1}))
    assert (first.created, second.created) == (True, False)
    assert second.id == first.id
    assert stored(store) == (1, 1)


async def test_headers_and_generation_do_not_make_another_message(store: Store) -> None:
    (first,) = await put(store, message(key="order:1", headers={"request_id": "1"}, generation=1))
    (second,) = await put(store, message(key="order:1", headers={"request_id": "2"}, generation=2))
    assert second.id == first.id


@pytest.mark.parametrize(
    ("type", "payload"),
    [("order.placed", {"n": 2}), ("order.placed", {"n": True}), ("order.paid", {"n": 1}), ("order.placed", [1])],
)
async def test_a_key_with_other_content_is_a_conflict_and_nothing_is_written(
    store: Store, type: str, payload: object
) -> None:
    await register_consumers(store, {"billing": ["*"]})
    (first,) = await put(store, message("order.placed", {"n": 1}, key="order:1"))
    other = message(type, payload, key="order:1")
    with pytest.raises(KeyConflict) as conflict:
        await put(store, message(), message(key="a"), other, message(key="z"))
    assert (conflict.value.source, conflict.value.key, conflict.value.message_id) == ("shop", "order:1", first.id)
    assert stored(store) == (1, 1)


async def test_a_duplicate_brings_no_second_delivery(store: Store) -> None:
    """Also when the first one's deliveries went elsewhere: only a message that was stored has deliveries."""
    (first,) = await put(store, message(key="order:1"))
    await register_consumers(store, {"billing": ["*"]}, from_start=False)
    (second,) = await put(store, message(key="order:1"))
    assert second.id == first.id
    assert await all_deliveries(store) == []


async def test_sources_do_not_share_keys(store: Store) -> None:
    ours, theirs = await put(store, message(key="k", source="shop"), message(key="k", source="mail", payload={}))
    assert (ours.created, theirs.created) == (True, True)
    (found,) = await store.run(messages(source="mail", key="k"))
    assert found.id == theirs.id


async def test_one_key_twice_in_a_batch_is_one_message(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]})
    same = [message(key="k") for _ in range(3)]
    published = await put(store, *same, message(key="l"))
    assert [one.created for one in published].count(True) == 2
    assert len({one.id for one in published[:3]}) == 1
    assert stored(store) == (2, 2)


async def test_one_key_with_two_contents_in_a_batch_is_a_conflict(store: Store) -> None:
    with pytest.raises(KeyConflict):
        await put(store, message(key="k", payload=1), message(key="k", payload=2))
    assert stored(store) == (0, 0)


async def test_a_large_batch_of_known_and_new_keys_is_sorted_out(store: Store) -> None:
    await put(store, *[message(key=f"k{n}") for n in range(0, 300, 3)])
    published = await put(store, *[message(key=f"k{n}") for n in range(300)])
    assert [n for n, one in enumerate(published) if not one.created] == list(range(0, 300, 3))
    assert stored(store) == (300, 0)


async def test_a_key_holds_for_jobs_after_they_are_done(store: Store) -> None:
    (first,) = await put(store, job(key="job:1"))
    (claimed,) = await claim_all(store)
    await finish(store, claimed, Deliver())
    (second,) = await put(store, job(key="job:1"))
    assert (second.id, second.created) == (first.id, False)
    assert stored(store) == (1, 1)


async def test_a_unique_job_exists_once_while_it_is_unfinished(store: Store) -> None:
    (first,) = await put(store, job(unique="report"))
    (second,) = await put(store, job(unique="report", payload={"other": True}))
    assert (second.id, second.created) == (first.id, False)
    (claimed,) = await claim_all(store)
    (third,) = await put(store, job(unique="report"))
    assert third.id == first.id, "in flight is unfinished too"
    await finish(store, claimed, Retry(SECOND), error=failure())
    (fourth,) = await put(store, job(unique="report"))
    assert fourth.id == first.id, "and so is a retry wait"
    assert stored(store) == (1, 1)


async def test_unique_is_per_consumer(store: Store) -> None:
    one, two = await put(store, job("mail", unique="report"), job("audit", unique="report"))
    assert (one.created, two.created) == (True, True)


@pytest.mark.parametrize("end", [Deliver(), DeadLetter()])
async def test_a_unique_job_may_be_made_again_once_it_has_ended(store: Store, end: Deliver | DeadLetter) -> None:
    (first,) = await put(store, job(unique="report"))
    (claimed,) = await claim_all(store)
    await finish(store, claimed, end)
    (second,) = await put(store, job(unique="report"))
    assert second.created
    assert second.id != first.id


async def test_a_unique_job_may_be_made_again_once_it_was_cancelled(store: Store) -> None:
    await put(store, job(unique="report"))
    (pending,) = await all_deliveries(store)
    await store.run(cancel([pending.id], "ada", None))
    (second,) = await put(store, job(unique="report"))
    assert second.created


async def test_a_unique_job_comes_with_its_whole_envelope(store: Store) -> None:
    (published,) = await put(store, job("mail", {"a": 1}, unique="report", queue="slow", generation=3, max_attempts=2))
    (found,) = await all_deliveries(store)
    assert (found.queue, found.generation, found.max_attempts) == ("slow", 3, 2)
    (stored_message,) = await store.run(messages(id=published.id))
    assert (stored_message.generation, stored_message.key) == (3, None)


async def test_a_jobs_key_is_stored_once_across_sources(store: Store) -> None:
    (first,) = await put(store, job("cancel", {"order": 1}, key="order:1:cancel", source="web"))
    (again,) = await put(store, job("cancel", {"order": 1}, key="order:1:cancel", source="jobs"))
    assert again == Published(first.id, False)
    assert stored(store) == (1, 1)
    with pytest.raises(KeyConflict) as conflict:
        await put(store, job("cancel", {"order": 2}, key="order:1:cancel", source="jobs"))
    assert (conflict.value.source, conflict.value.message_id) == ("jobs", first.id)


async def test_another_job_may_use_the_same_key_from_another_source(store: Store) -> None:
    (first,) = await put(store, job("cancel", key="order:1", source="web"))
    (other,) = await put(store, job("refund", key="order:1", source="jobs"))
    assert (first.created, other.created) == (True, True)
    (again,) = await put(store, job("refund", key="order:1", source="jobs"))
    assert again.id == other.id
    with pytest.raises(KeyConflict):
        await put(store, job("ship", key="order:1", source="web"))


async def test_the_same_jobs_key_counts_before_one_that_only_shares_the_source(store: Store) -> None:
    await put(store, job("cancel", key="order:1", source="web"))
    (refund,) = await put(store, job("refund", key="order:1", source="jobs"))
    (again,) = await put(store, job("refund", key="order:1", source="web"))
    assert again == Published(refund.id, False)


async def test_an_events_key_is_unique_within_its_source_alone(store: Store) -> None:
    (first,) = await put(store, message("job.created", key="1", source="kafka:a"))
    (second,) = await put(store, message("job.created", key="1", source="kafka:b"))
    assert (first.created, second.created) == (True, True)


async def test_unique_jobs_twice_in_one_call_are_one_job(store: Store) -> None:
    first, second, plain = await put(store, job(unique="report"), job(unique="report"), job())
    assert second.id == first.id
    assert plain.created
    assert stored(store) == (2, 2)


async def test_a_message_with_key_and_unique_is_refused(store: Store) -> None:
    with pytest.raises(ConfigurationError, match="both key= and unique="):
        await put(store, job(key="k", unique="report"))
    assert stored(store) == (0, 0)


def test_a_key_whose_first_message_is_pruned_concurrently_is_published_after_all() -> None:
    """Between the insert that meets the first one and the look for it, a pruner may have removed it."""
    again = message(key="order:1")
    steps = publish([again], Fanout(Subscriptions(1, {}))).start()
    assert next(steps).name == "publish_keyed"
    assert steps.send([]).name == "find_keyed"
    assert steps.send([]).name == "publish_keyed"
    with pytest.raises(StopIteration) as end:
        steps.send([(again.id, 1)])
    assert end.value.value == [Published(again.id, True)]
