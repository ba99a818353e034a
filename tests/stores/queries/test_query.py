"""Reading: every filter, pages without gaps or repeats, failure groups and counts."""

from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError
from holdfast.stores.admin.actions import cancel, discard
from holdfast.stores.protocol import Store
from holdfast.stores.queries.delivery_counts import counts, failure_groups
from holdfast.stores.queries.pagination import delivery_page
from holdfast.stores.queries.query import Filter, clock, deliveries, deliveries_of, messages, runs
from tests.support.builders import (
    SECOND,
    age,
    all_deliveries,
    claim_all,
    claim_one,
    failure,
    finish,
    fresh_id,
    job,
    message,
    put,
    register_consumers,
    sibling_of,
    sql,
)

HOUR = timedelta(hours=1)


async def found(store: Store, **wanted: object) -> list[str]:
    """The consumers of the deliveries a filter finds, sorted."""
    return sorted(d.consumer for d in await all_deliveries(store, Filter(**wanted)))  # type: ignore[arg-type]


async def one_of_each(store: Store) -> dict[str, UUID]:
    """A delivery in every state, each for a consumer named after it; returns their ids."""
    names = ("pending", "running", "done", "dead", "other_dead", "discarded", "cancelled")
    await put(store, *[job(name, queue=f"q_{name[0]}") for name in names])
    claims = {c.consumer: c for c in await claim_all(store, consumers=names[1:])}
    await finish(store, claims["done"], Deliver())
    await finish(store, claims["dead"], DeadLetter(), error=failure("boom"))
    await finish(store, claims["other_dead"], DeadLetter(), error=failure("no", KeyError))
    await finish(store, claims["discarded"], DeadLetter(), error=failure("boom"))
    await store.run(discard([claims["discarded"].id], "ada", None))
    await store.run(cancel([claims["cancelled"].id], "ada", None))
    return {d.consumer: d.id for d in await all_deliveries(store)}


async def test_a_filter_by_state(store: Store) -> None:
    await one_of_each(store)
    failed = ["cancelled", "dead", "discarded", "other_dead"]
    assert await found(store, statuses=(Status.PENDING,)) == ["pending"]
    assert await found(store, statuses=(Status.IN_FLIGHT,)) == ["running"]
    assert await found(store, statuses=(Status.DELIVERED,)) == ["done"]
    assert await found(store, statuses=(Status.FAILED,)) == failed
    assert await found(store, statuses=(Status.PENDING, Status.DELIVERED)) == ["done", "pending"]
    assert await found(store, dead=True) == ["dead", "other_dead"]
    assert await found(store, discarded=True) == ["cancelled", "discarded"]
    assert await found(store, discarded=False, statuses=(Status.FAILED,)) == ["dead", "other_dead"]
    assert len(await found(store)) == 7


async def test_a_filter_by_who_and_what(store: Store) -> None:
    ids = await one_of_each(store)
    rows = {d.consumer: d for d in await all_deliveries(store)}
    assert await found(store, consumers=("dead", "done")) == ["dead", "done"]
    assert await found(store, queue="q_d") == ["dead", "discarded", "done"]
    assert await found(store, type="job.done") == ["done"]
    assert await found(store, error_type="KeyError") == ["other_dead"]
    assert await found(store, group=rows["dead"].fingerprint) == ["dead", "discarded"]
    assert await found(store, group=rows["dead"].fingerprint, dead=True) == ["dead"]
    assert await found(store, message_id=rows["running"].message_id) == ["running"]
    assert await found(store, ids=(ids["done"], ids["pending"], fresh_id())) == ["done", "pending"]
    assert await found(store, ids=()) == []
    assert await found(store, consumers=("dead",), type="job.done") == []


async def test_a_filter_by_time_looks_at_the_end_or_else_the_beginning(store: Store) -> None:
    await one_of_each(store)
    age(store, HOUR, "delivery")
    (late, *_) = await claim_all(store, consumers=["pending"])
    await finish(store, late, Deliver())
    now = await store.run(clock())
    assert await found(store, since=now - SECOND * 30) == ["pending"]
    assert len(await found(store, until=now - SECOND * 30)) == 6
    assert await found(store, since=now + HOUR) == []
    rows = {d.consumer: d for d in await all_deliveries(store)}
    end = rows["done"].completed_at
    assert isinstance(end, datetime)
    assert "done" in await found(store, since=end)
    assert "done" not in await found(store, until=end)


async def test_a_listed_delivery_says_what_its_message_is(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]})
    (published,) = await put(store, message("order.placed", key="k", source="shop.eu"))
    (listed,) = await store.run(deliveries(Filter()))
    assert (listed.type, listed.source, listed.key) == ("order.placed", "shop.eu", "k")
    assert listed.delivery.message_id == published.id


@pytest.mark.parametrize("wanted", [Filter(), Filter(consumers=("mail",)), Filter(statuses=(Status.PENDING,))])
async def test_pages_have_no_gaps_and_no_repeats(store: Store, wanted: Filter) -> None:
    await put(store, *[job("mail") for _ in range(25)])
    seen: list[UUID] = []
    before = None
    while page := await store.run(deliveries(wanted, 10, before)):
        assert len(page) <= 10
        seen += [listed.delivery.id for listed in page]
        before = seen[-1]
        # What arrives in the meantime is newer and does not disturb the pages below.
        await put(store, job("mail"))
    assert seen == sorted(set(seen), reverse=True)
    assert len(seen) == 25


@pytest.mark.parametrize("limit", [0, -1, 1001])
async def test_a_page_has_a_bounded_size(store: Store, limit: int) -> None:
    with pytest.raises(ConfigurationError, match="1 to 1000"):
        await store.run(deliveries(Filter(), limit))
    with pytest.raises(ConfigurationError, match="1 to 1000"):
        await store.run(messages(limit=limit))


async def test_messages_are_listed_by_what_they_are(store: Store) -> None:
    await put(
        store,
        message("order.placed", key="a"),
        message("order.paid", key="b"),
        message("order.placed", source="mail", key="a"),
    )
    assert len(await store.run(messages())) == 3
    assert len(await store.run(messages(type="order.placed"))) == 2
    assert [m.type for m in await store.run(messages(source="shop", key="b"))] == ["order.paid"]
    assert await store.run(messages(type="order")) == []
    pages = [await store.run(messages(limit=2))]
    pages.append(await store.run(messages(limit=2, before=pages[0][-1].id)))
    ids = [m.id for page in pages for m in page]
    assert ids == sorted(set(ids), reverse=True)
    assert [len(page) for page in pages] == [2, 1]


async def test_the_deliveries_of_one_message_are_found_together(store: Store) -> None:
    await register_consumers(store, {"b": ["*"], "a": ["*"]})
    wanted, _ = await put(store, message(), message())
    listed = await store.run(deliveries_of(wanted.id))
    assert [(one.delivery.consumer, one.delivery.message_id) for one in listed] == [
        ("a", wanted.id),
        ("b", wanted.id),
    ]
    assert await store.run(deliveries_of(fresh_id())) == []


async def test_neighbours_of_the_same_millisecond_are_distinguished(store: Store) -> None:
    """The first half of their ids is equal, and so is the range their deliveries lie in."""
    await register_consumers(store, {"a": ["*"]})
    one = message()
    await put(store, one, sibling_of(one))
    assert len(await store.run(deliveries_of(one.id))) == 1
    assert len(await all_deliveries(store, Filter(message_id=one.id))) == 1


async def test_the_runs_of_a_delivery_come_in_order(store: Store) -> None:
    await put(store, job())
    for n in range(3):
        (claimed,) = await claim_all(store)
        await finish(store, claimed, Retry(timedelta(0)), error=failure(f"boom {n}"))
    (row,) = await all_deliveries(store)
    recorded = await store.run(runs(row.id))
    assert [(r.attempt, r.error) for r in recorded] == [(1, "boom 0"), (2, "boom 1"), (3, "boom 2")]
    assert await store.run(runs(fresh_id())) == []


async def test_dead_letters_that_failed_alike_form_a_group(store: Store) -> None:
    await put(store, *[job("mail", generation=n) for n in range(3)], job("audit"), job("gone"), job("silent"))
    claims = await claim_all(store, generation=9)
    for claimed in claims:
        error = None if claimed.consumer == "silent" else failure(f"order {claimed.generation} not found", KeyError)
        await finish(store, claimed, DeadLetter(), error=error)
    gone = next(c for c in claims if c.consumer == "gone")
    await store.run(discard([gone.id], "ada", None))
    groups = {group.consumer: group for group in await store.run(failure_groups())}
    assert set(groups) == {"mail", "audit", "silent"}
    rows = sorted(await all_deliveries(store, Filter(consumers=("mail",))), key=lambda d: d.id)
    group = groups["mail"]
    assert (group.count, group.error_type, group.fingerprint) == (3, "KeyError", rows[0].fingerprint)
    newest = max(rows, key=lambda d: (d.completed_at, d.id))
    assert (group.example, group.last_error) == (newest.id, newest.last_error)
    assert group.first_failed_at == min(d.first_failed_at for d in rows if d.first_failed_at)
    assert group.last_failed_at == max(d.completed_at for d in rows if d.completed_at)
    assert groups["silent"].fingerprint is None
    assert (await store.run(failure_groups(limit=1)))[0].consumer == "mail", "the largest group comes first"


async def test_counts_say_what_waits_runs_and_failed(store: Store) -> None:
    await one_of_each(store)
    await put(store, job("pending", queue="q_p"), job("guilty"))
    sql(store, "update {hf}delivery set suspect = (1 = 1) where consumer = 'guilty'")
    counted = {(c.queue, c.consumer, c.state): c for c in await store.run(counts())}
    assert {key: c.count for key, c in counted.items()} == {
        ("q_p", "pending", "pending"): 2,
        ("default", "guilty", "suspect"): 1,
        ("q_r", "running", "in_flight"): 1,
        ("q_d", "dead", "failed"): 1,
        ("q_o", "other_dead", "failed"): 1,
        ("q_d", "discarded", "discarded"): 1,
        ("q_c", "cancelled", "discarded"): 1,
    }
    oldest = counted["q_p", "pending", "pending"]
    assert oldest.oldest_at is not None
    assert oldest.oldest_at <= oldest.now
    rows = [d for d in await all_deliveries(store) if d.consumer == "pending"]
    assert oldest.oldest_at == min(d.run_at for d in rows)


async def test_an_empty_store_counts_nothing(store: Store) -> None:
    assert await store.run(counts()) == []
    assert await store.run(failure_groups()) == []
    assert await store.run(deliveries(Filter())) == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ConnectionError", {"ConnectionError", "requests.exceptions.ConnectionError"}),
        ("builtins.ConnectionError", {"ConnectionError", "requests.exceptions.ConnectionError"}),
        ("exceptions.ConnectionError", {"requests.exceptions.ConnectionError"}),
        ("requests.exceptions.ConnectionError", {"requests.exceptions.ConnectionError"}),
        ("Error", set()),
        ("nError", set()),
        ("%", set()),
    ],
)
async def test_an_error_is_found_by_its_short_name(store: Store, name: str, expected: set[str]) -> None:
    kinds = {"ConnectionError", "requests.exceptions.ConnectionError", "shop.MyConnectionError", "other.Broken"}
    for kind in sorted(kinds):
        claimed = await claim_one(store)
        await finish(store, claimed, DeadLetter(), error=replace(failure(), type=kind))
    found = await store.run(deliveries(Filter(dead=True, error_type=name)))
    assert {one.delivery.error_type for one in found} == expected
    paged = await store.run(delivery_page(Filter(dead=True, error_type=name)))
    assert {one.delivery.error_type for one in paged.items} == expected
