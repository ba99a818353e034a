"""Claims with flow control: limits, rates, order, pauses and fairness hold over all workers."""

from datetime import timedelta

import pytest

from holdfast import Limit, Queue, Rate
from holdfast.core.change import Postpone, Retry
from holdfast.stores.deliveries.claim import lanes, rescue
from holdfast.stores.deliveries.flow import (
    Floors,
    FlowScan,
    KeyFloor,
    adopt_deliveries,
    claim_flow,
    due_lanes,
    flow_floors,
    forget_old_starts,
    unkeyed_deliveries,
)
from holdfast.stores.dialect import as_uuid, aware_time
from holdfast.stores.messages.flow import DeliveryKey
from holdfast.stores.messages.registry import register
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from tests.stores.flow_cases import bury, declare, deliver, lane_of, numbers, send, settings, take
from tests.support.builders import LEASE, expire, failure, finish, sql


async def test_a_global_limit_counts_every_worker(store: Store) -> None:
    flow = settings(limit=Limit(3))
    await declare(store, flow)
    await send(store, flow, *"abcdefgh")
    first = await take(store, 2, worker="w1")
    second = await take(store, 100, worker="w2")
    assert (numbers(first.claims), numbers(second.claims)) == ([0, 1], [2])
    assert (await take(store, worker="w3")).claims == []
    await deliver(store, first.claims[0])
    assert numbers((await take(store, worker="w3")).claims) == [3]


async def test_a_limit_by_key_counts_each_key(store: Store) -> None:
    flow = settings(limit=Limit(2, by="k"))
    await declare(store, flow)
    await send(store, flow, *"aaabbc")
    first, second = await take(store, 1), await take(store, worker="w2")
    assert (numbers(first.claims), numbers(second.claims)) == ([0], [1, 3, 4, 5])
    assert (second.left, (await take(store, worker="w3")).claims) == (1, [])
    await deliver(store, *first.claims)
    assert numbers((await take(store, worker="w3")).claims) == [2]


async def test_an_expired_lease_counts_until_it_is_taken_over(store: Store) -> None:
    flow = settings(limit=Limit(1, by="k"))
    await declare(store, flow)
    await send(store, flow, "a", "a")
    await take(store, worker="dead")
    expire(store)
    assert (await take(store, worker="w2")).claims == []
    (rescued,) = await store.run(rescue("w2", LEASE, 10))
    assert (await take(store, worker="w2")).claims == []
    await finish(store, rescued.claimed, Retry(timedelta(0)), "w2", error=failure())
    assert len((await take(store, worker="w2")).claims) == 1


@pytest.mark.parametrize("by", [None, "k"])
async def test_a_rate_allows_so_many_claims_in_a_window_with_retries(store: Store, by: str | None) -> None:
    flow = settings(rate=Rate("3/10m", by=by))
    await declare(store, flow)
    await send(store, flow, *"aaaaaa")
    first = await take(store, 2)
    assert numbers(first.claims) == [0, 1]
    await finish(store, first.claims[0], Retry(timedelta(0)), error=failure())
    assert len((await take(store)).claims) == 1
    last = await take(store)
    assert last.claims == []
    assert last.wait is not None
    assert 590 < last.wait <= 612


async def test_the_next_token_of_a_rate_is_used_when_it_is_due(store: Store) -> None:
    flow = settings(rate=Rate("2/10s", by="k"))
    await declare(store, flow)
    await send(store, flow, *"aaab")
    assert numbers((await take(store)).claims) == [0, 1, 3]
    amount = "interval '10.3 s'" if "postgres" in store.dialect.name else "10300"
    sql(store, f"update {{hf}}flow_start set bucket = bucket - {amount}")
    assert numbers((await take(store)).claims) == [2]


async def test_an_ordered_key_runs_one_at_a_time_in_the_order_of_publish(store: Store) -> None:
    flow = settings(order_by="k")
    await declare(store, flow)
    await send(store, flow, *"aabab")
    for expected in ([0, 2], [1, 4], [3]):
        got = await take(store)
        assert numbers(got.claims) == expected
        assert (await take(store, worker="w2")).claims == []
        await deliver(store, *got.claims)


async def test_a_head_that_waits_for_its_retry_holds_up_its_key(store: Store) -> None:
    flow = settings(order_by="k")
    await declare(store, flow)
    await send(store, flow, *"aab")
    got = await take(store, 1)
    await finish(store, got.claims[0], Retry(timedelta(minutes=1)), error=failure())
    assert numbers((await take(store)).claims) == [2]
    assert (await take(store, cursor="")).claims == []


async def test_priority_does_not_reorder_an_ordered_key(store: Store) -> None:
    flow = settings(order_by="k")
    await declare(store, flow)
    await send(store, flow, "a", priority=3)
    await send(store, flow, "a", priority=0)
    assert (await take(store, priority=0)).claims == []
    assert (await take(store, priority=0, cursor="")).claims == []
    assert len((await take(store, priority=3)).claims) == 1


@pytest.mark.parametrize("cursor", [None, ""], ids=["window", "walk"])
async def test_a_dead_letter_blocks_its_key(store: Store, cursor: str | None) -> None:
    flow = settings(order_by="k", on_dead="block")
    await declare(store, flow)
    await send(store, flow, *"aab")
    got = await take(store, 1, cursor=cursor)
    await bury(store, got.claims[0])
    assert numbers((await take(store, cursor=cursor)).claims) == [2]
    sql(store, "update {hf}delivery set discarded_at = completed_at where status = 'failed'")
    assert numbers((await take(store, cursor=cursor)).claims) == [1]


async def test_a_dead_letter_is_skipped_if_the_consumer_says_so(store: Store) -> None:
    flow = settings(order_by="k", on_dead="skip")
    await declare(store, flow)
    await send(store, flow, *"aa")
    got = await take(store, 1)
    await bury(store, got.claims[0])
    assert numbers((await take(store)).claims) == [1]


@pytest.mark.parametrize("options", [{"limit": Limit(5, by="k")}, {"order_by": "k"}, {"fair_by": "k"}])
async def test_a_paused_key_is_not_claimed(store: Store, options: dict[str, object]) -> None:
    flow = settings(**options)
    await declare(store, flow)
    await send(store, flow, *"ab")
    sql(store, "insert into {hf}flow_pause (consumer, flow_key) values ('mail', 'a')")
    assert numbers((await take(store)).claims) == [1]
    assert (await take(store, cursor="")).claims == []


async def test_a_walk_gives_each_key_a_turn_and_continues_after_its_last_key(store: Store) -> None:
    flow = settings(fair_by="k")
    await declare(store, flow)
    await send(store, flow, *("a" * 6), "b", "c", "d")
    first = await take(store, 2, cursor="", share=2)
    assert (numbers(first.claims), first.cursor) == ([0, 6], "b")
    second = await take(store, 2, cursor=first.cursor)
    assert (numbers(second.claims), second.cursor) == ([7, 8], "d")
    third = await take(store, 2, cursor=second.cursor)
    assert (numbers(third.claims), third.cursor, third.keys) == ([1], "a", 1)
    assert numbers((await take(store, 3, cursor=third.cursor, share=3)).claims) == [2, 3, 4]


async def test_a_walk_continues_after_the_last_key_that_had_its_turn(store: Store) -> None:
    flow = settings(fair_by="k", limit=Limit(1))
    await declare(store, flow)
    await send(store, flow, *"abc")
    got = await take(store, 2, cursor="")
    assert (numbers(got.claims), got.cursor) == ([0], "a")


@pytest.mark.parametrize("options", [{"fair_by": "k"}, {"limit": Limit(3, by="k")}])
async def test_a_walk_reads_known_keys_from_their_floors_and_finds_unknown_ones(
    postgres_store: PostgresStore, options: dict[str, object]
) -> None:
    store, flow = postgres_store, settings(**options)
    await declare(store, flow)
    await send(store, flow, "", "a", "b", "c", "d", "e", "b", "f")
    lane = await lane_of(store)
    rows = sql(store, "select flow_key, max(run_at) from {hf}delivery group by 1")
    due = {str(key): aware_time(at) for key, at in rows}
    # Nothing of e is due from its floor, x has nothing, and f is not due.
    known: tuple[KeyFloor, ...] = (("d", due["d"]), ("e", due["f"]), ("x", due["a"]), ("b", due["b"]))
    sql(store, "update {hf}delivery set run_at = run_at + interval '1 h' where flow_key = 'f'")
    got = await store.run(claim_flow(lane, "w1", LEASE, FlowScan(9, "c", 9, known=known), Floors()))
    assert numbers(got.claims) == [0, 1, 3, 4, 6]
    assert got.visited == tuple(
        (key, None if key in "efx" and key else due[key]) for key in ("d", "e", "f", "x", "", *"abc")
    )
    # The walk ends with the number of its visits; the empty key may be known too.
    known = (("", due["a"]), ("a", due["a"]))
    got = await store.run(claim_flow(lane, "w1", LEASE, FlowScan(9, "x", 9, 3, known=known), Floors()))
    assert (numbers(got.claims), [key for key, _ in got.visited], got.cursor) == ([2], ["", "a", "b"], "b")


async def test_ordered_keys_take_turns_by_their_oldest_delivery(store: Store) -> None:
    flow = settings(order_by="k")
    await declare(store, flow)
    await send(store, flow, *"cbaca")
    assert numbers((await take(store, 2)).claims) == [0, 1]


async def test_a_walk_finds_the_keys_behind_a_full_window(store: Store) -> None:
    flow = settings(limit=Limit(1, by="k"))
    await declare(store, flow)
    await send(store, flow, *("a" * 110), "b", "")
    got = await take(store, 4)
    assert numbers(got.claims) == [0]
    assert got.left >= 107
    got = await take(store, 4, cursor="")
    assert numbers(got.claims) == [110, 111]


async def test_a_limit_and_an_order_combine(store: Store) -> None:
    flow = settings(order_by="k", limit=Limit(2))
    await declare(store, flow)
    await send(store, flow, *"abc")
    assert numbers((await take(store)).claims) == [0, 1]
    assert (await take(store, cursor="")).claims == []


async def test_a_queue_limits_all_its_consumers_together(store: Store) -> None:
    queue = Queue("mails", limit=Limit(2), rate=Rate("3/10s"))
    assert queue.flow is not None
    await store.run(register([], [], 0, (), {"mails": queue.flow.text}))
    await declare(store, None, name="one")
    await declare(store, settings(order_by="k"), name="two")
    await send(store, None, *"aa", name="one", queue="mails")
    await send(store, settings(order_by="k"), *"ab", name="two", queue="mails")
    first, second = await take(store, 1, name="one"), await take(store, name="two")
    assert (len(first.claims), len(second.claims)) == (1, 1)
    assert (await take(store, name="one")).claims == []
    await deliver(store, *first.claims, *second.claims)
    assert len((await take(store, name="one")).claims) == 1
    assert (await take(store, name="two")).claims == []


async def test_a_suspect_is_claimed_within_the_limit_and_in_its_order(store: Store) -> None:
    flow = settings(order_by="k")
    await declare(store, flow)
    await send(store, flow, *"aab")
    sql(store, "update {hf}delivery set suspect = " + ("true" if store.dialect.name == "postgres" else "1"))
    first = await take(store, 1, suspects=True)
    assert numbers(first.claims) == [0]
    second = await take(store, 1, suspects=True)
    assert numbers(second.claims) == [2]
    assert (await take(store, 1, suspects=True)).claims == []
    if store.dialect.name == "postgres":
        assert sql(store, "select count(*) from {hf}delivery where status = 'in_flight' and flow_ticket > 0") == [(2,)]


async def test_a_suspect_behind_the_head_of_its_key_waits(store: Store) -> None:
    flow = settings(order_by="k")
    await declare(store, flow)
    await send(store, flow, *"aa")
    suspect = "true" if store.dialect.name == "postgres" else "1"
    last = "select max(flow_seq) from {hf}delivery"
    sql(store, f"update {{hf}}delivery set suspect = {suspect} where flow_seq = ({last})")
    assert (await take(store, suspects=True)).claims == []


async def test_a_delivery_that_is_not_due_is_not_claimed(store: Store) -> None:
    flow = settings(limit=Limit(5, by="k"))
    await declare(store, flow)
    await send(store, flow, "a", delay=timedelta(minutes=1))
    await send(store, flow, "b")
    got = await take(store)
    assert len(got.claims) == 1
    await finish(store, got.claims[0], Postpone(timedelta(minutes=1)))
    assert (await take(store, cursor="")).claims == []


async def test_an_order_waits_until_every_delivery_has_its_place(store: Store) -> None:
    await declare(store, settings(order_by="k"))
    await send(store, None, "a")
    await send(store, settings(order_by="k"), "a", "b")
    got = await take(store)
    assert (got.claims, got.unkeyed) == ([], 1)
    lane = await lane_of(store)
    (unkeyed,) = (await store.run(unkeyed_deliveries(lane, 10, ordered=True))).found
    assert await store.run(adopt_deliveries([DeliveryKey(unkeyed.id, "a", True)])) == 1
    assert await store.run(adopt_deliveries([DeliveryKey(unkeyed.id, "x", True)])) == 0
    got = await take(store)
    assert [claim.id for claim in got.claims if claim.id == unkeyed.id] == [unkeyed.id]
    assert len(got.claims) == 2


async def test_tickets_below_the_floor_are_not_counted_and_no_later_claim_is_below_it(store: Store) -> None:
    flow = settings(limit=Limit(2, by="k"))
    await declare(store, flow)
    await send(store, flow, *"aaaa")
    first = await take(store, 2)
    floors = await store.run(flow_floors(await lane_of(store)))
    assert (await take(store, floors=floors)).claims == []
    await deliver(store, *first.claims)
    floors = await store.run(flow_floors(await lane_of(store)))
    assert len((await take(store, floors=floors)).claims) == 2
    assert (await take(store, floors=floors)).claims == []


async def test_the_lanes_with_a_due_delivery_are_found_together(store: Store) -> None:
    flow = settings(limit=Limit(3, by="k"))
    for name in ("due", "full", "later", "suspect", "unkeyed"):
        await declare(store, flow, name=name)
        await send(store, None if name == "unkeyed" else flow, *"aaaaa", name=name)
    await take(store, name="full")
    later = "interval '1 h'" if "postgres" in store.dialect.name else "3600000"
    sql(store, f"update {{hf}}delivery set run_at = run_at + {later} where consumer = 'later'")
    await send(store, flow, "a", name="later", priority=3)
    for name, taken in (("reached", 3), ("room", 2)):
        await declare(store, settings(limit=Limit(3)), name=name)
        await send(store, settings(limit=Limit(3)), *"aaaaa", name=name)
        await take(store, taken, name=name)
    known = await store.run(lanes(["due", "full", "later", "suspect", "unkeyed", "reached", "room"], 0))
    sql(store, "update {hf}delivery set suspect = true where consumer = 'suspect'")
    due = [(lane.consumer, lane.priority) for lane in await store.run(due_lanes(known))]
    assert sorted(due) == [("due", 1), ("full", 1), ("later", 3), ("room", 1), ("unkeyed", 1)]
    assert [lane.consumer for lane in await store.run(due_lanes(known, suspects=True))] == ["suspect"]


async def test_a_lane_is_searched_for_deliveries_without_a_key_page_by_page(store: Store) -> None:
    flow = settings(order_by="k")
    await declare(store, flow)
    for keyed in (True, True, True, False, True, False, True):
        await send(store, flow if keyed else None, "a")
    lane, after, pages = await lane_of(store), None, []
    for _ in range(10):
        found, after = await store.run(unkeyed_deliveries(lane, 1, ordered=True, after=after, scanned=3))
        pages.append(len(found))
        if after is None:
            break
    assert pages == [0, 1, 1, 0]


async def test_buckets_of_consumers_without_a_rate_are_removed(store: Store) -> None:
    await declare(store, settings(rate=Rate("1/2d")), name="mail")
    await declare(store, None, name="gone")
    for name, days in (("gone", 3), ("gone", 5), ("mail", 3), ("mail", 5)):
        if "postgres" in store.dialect.name:
            at = f"now() - interval '{days} days'"
        else:
            at = f"(strftime('%s') - {days * 86_400}) * 1000"
        sql(store, f"insert into {{hf}}flow_start values ('{name}', '', {at}, 1)")
    await store.run(forget_old_starts())
    left = sql(store, "select consumer from {hf}flow_start order by consumer")
    assert [row[0] for row in left] == ["gone", "mail"]
    await declare(store, None, name="mail")
    await store.run(forget_old_starts())
    assert sql(store, "select consumer from {hf}flow_start") == []


async def test_what_became_due_is_claimed_before_what_is_older(store: Store) -> None:
    flow = settings(limit=Limit(1, by="k"))
    await declare(store, flow)
    await send(store, flow, *"aabcde")
    lane = await lane_of(store)
    number = "(m.payload ->> 'n')::integer" if "postgres" in store.dialect.name else "(m.payload ->> 'n')"
    earlier = "interval '1 s'" if "postgres" in store.dialect.name else "1000"
    sql(
        store,
        f"update {{hf}}delivery set run_at = run_at - {earlier} * (9 - (select {number} from {{hf}}message m "
        "where m.id = message_id))",
    )
    due = sql(store, "select d.run_at, d.id from {hf}delivery d order by d.run_at")
    since = aware_time(due[2][0]), as_uuid(due[2][1])
    found = await store.run(claim_flow(lane, "w1", LEASE, FlowScan(2, since=since), Floors()))
    assert numbers(found.claims) == [2, 3]
    assert (found.left, found.floor) == (2, (aware_time(due[5][0]), as_uuid(due[5][1])))
    assert found.at is not None
    assert found.at >= aware_time(due[5][0])
