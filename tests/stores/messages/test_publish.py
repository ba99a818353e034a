"""Publishing: a message and its deliveries exist together, once per consumer."""

from datetime import UTC, datetime, timedelta
from random import Random
from uuid import UUID

import orjson
import psycopg
import pytest

from holdfast.core.delivery import Status
from holdfast.core.errors import InvalidPayload
from holdfast.core.events.payload import MAX_REQUEST_ID_BYTES
from holdfast.core.message import Address, new_message
from holdfast.core.retry import RetryPolicy
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import Published, publish, publish_single
from holdfast.stores.messages.registry import retire
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter, clock, deliveries_of, messages
from holdfast.stores.queries.request_trace import request_messages
from tests.support.builders import (
    SECOND,
    all_deliveries,
    claim_all,
    fresh_id,
    job,
    message,
    put,
    register_consumers,
    sql,
)


async def consumers_of(store: Store, message_id: UUID) -> list[str]:
    return [listed.delivery.consumer for listed in await store.run(deliveries_of(message_id))]


async def test_an_event_reaches_exact_prefix_and_star_subscribers(store: Store) -> None:
    await register_consumers(
        store,
        {
            "exact": ["order.line.added"],
            "near": ["order.line.*"],
            "far": ["order.*"],
            "all": ["*"],
            "other": ["order.line"],
            "sibling": ["order.lines.*"],
        },
    )
    (published,) = await put(store, message("order.line.added"))
    assert await consumers_of(store, published.id) == ["all", "exact", "far", "near"]
    (bare,) = await put(store, message("order"))
    assert await consumers_of(store, bare.id) == ["all"]


async def test_one_delivery_per_consumer_though_several_patterns_match(store: Store) -> None:
    await register_consumers(store, {"billing": ["order.placed", "order.*", "*"]})
    (published,) = await put(store, message("order.placed"))
    assert await consumers_of(store, published.id) == ["billing"]


async def test_an_event_without_consumers_is_still_stored(store: Store) -> None:
    (published,) = await put(store, message("order.placed"))
    assert await consumers_of(store, published.id) == []
    assert [m.id for m in await store.run(messages(id=published.id))] == [published.id]


async def test_a_request_id_at_its_bound_fits_into_the_index(store: Store) -> None:
    """Random characters, which PostgreSQL cannot compress: an index entry of more than about 2,700 bytes is refused."""
    random = Random(1)
    longest = "".join(chr(random.randint(0x20000, 0x2A000)) for _ in range(MAX_REQUEST_ID_BYTES // 4))
    (published,) = await put(store, message(headers={"request_id": longest}))
    with pytest.raises(InvalidPayload, match="request_id"):
        message(headers={"request_id": f"{longest}x"})
    assert [one.id for one in await store.run(request_messages(longest, 2))] == [published.id]


async def test_a_value_that_the_server_cannot_index_is_not_taken_for_an_unreachable_server(
    postgres_store: PostgresStore,
) -> None:
    """A retry would fail again: the intake of a broker would repeat it without end."""
    random = Random(1)
    longest = "".join(chr(random.randint(0x20000, 0x2A000)) for _ in range(2000))
    unchecked = message()._replace(headers={"request_id": longest})
    with pytest.raises(psycopg.errors.ProgramLimitExceeded, match="index row"):
        await put(postgres_store, unchecked)


async def test_a_message_comes_back_as_it_was_handed_in(store: Store) -> None:
    payload = {"text": "naïve ☃ 'quoted' \"twice\" %s {x} :y", "n": 2**64 - 1, "f": 1.5, "none": None, "deep": [[[]]]}
    happened = datetime(2024, 2, 29, 12, 30, 15, 250_000, UTC)
    handed_in = new_message(
        id=fresh_id(),
        type="order.placed",
        source="shop.eu",
        key="order:7:42:place:v1",
        payload=payload,
        headers={"trace_id": "abc", "odd: header": "ü"},
        generation=7,
        occurred_at=happened,
    )
    await put(store, handed_in)
    (found,) = await store.run(messages(id=handed_in.id))
    assert (found.type, found.source, found.key) == ("order.placed", "shop.eu", "order:7:42:place:v1")
    assert orjson.loads(found.payload) == payload
    assert (found.headers, found.generation) == ({"trace_id": "abc", "odd: header": "ü"}, 7)
    assert found.occurred_at == happened
    assert found.position is not None


async def test_without_a_time_the_databases_clock_says_when_it_happened(store: Store) -> None:
    before = await store.run(clock())
    (published,) = await put(store, message())
    (found,) = await store.run(messages(id=published.id))
    assert before <= found.occurred_at <= await store.run(clock())


async def test_positions_rise_in_the_order_of_publishing(store: Store) -> None:
    published = await put(store, *[message() for _ in range(5)])
    found = {m.id: m.position or 0 for m in await store.run(messages())}
    positions = [found[one.id] for one in published]
    assert positions == sorted(set(positions))


async def test_a_job_has_its_delivery_without_a_registered_consumer(store: Store) -> None:
    policy = RetryPolicy.fixed(3, attempts=4)
    wanted = job("mail", queue="slow", priority=3, generation=2, max_attempts=9, retry=policy)
    (published,) = await put(store, wanted)
    (found,) = await all_deliveries(store)
    assert (found.message_id, found.consumer, found.queue, found.priority) == (published.id, "mail", "slow", 3)
    assert (found.status, found.attempts, found.max_attempts, found.fence) == (Status.PENDING, 0, 9, 0)
    assert found.generation == 2
    (claimed,) = await claim_all(store, generation=2)
    assert claimed.own_policy == policy


async def test_an_addressed_message_goes_to_its_address_alone(store: Store) -> None:
    await register_consumers(store, {"everything": ["*"]})
    (published,) = await put(store, job("mail"))
    assert await consumers_of(store, published.id) == ["mail"]


async def test_a_message_may_be_addressed_to_several_consumers(store: Store) -> None:
    both = message(addressed=[Address(consumer="mail"), Address(consumer="audit", queue="slow")])
    (published,) = await put(store, both)
    assert await consumers_of(store, published.id) == ["audit", "mail"]


async def test_a_delay_is_added_to_the_databases_clock(store: Store) -> None:
    before = await store.run(clock())
    await put(store, job("mail", delay=timedelta(minutes=5)))
    (found,) = await all_deliveries(store)
    assert before + timedelta(minutes=5) <= found.run_at <= await store.run(clock()) + timedelta(minutes=5)
    assert await claim_all(store) == []


async def test_a_time_to_run_at_is_taken_as_it_is(store: Store) -> None:
    then = datetime(2031, 5, 6, 7, 8, 9, 120_000, UTC)
    await put(store, message(addressed=[Address(consumer="mail", run_at=then)]))
    (found,) = await all_deliveries(store)
    assert found.run_at == then


async def test_a_consumers_own_queue_priority_and_generation_reach_its_deliveries(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]}, queue="payments", priority=0, generation=5)
    old, new = await put(store, message(generation=3), message(generation=8))
    found = {d.message_id: d for d in await all_deliveries(store)}
    assert (found[old.id].queue, found[old.id].priority) == ("payments", 0)
    assert found[old.id].generation == 5, "workers before generation 5 do not have this consumer"
    assert found[new.id].generation == 8


async def test_thousands_of_messages_in_one_call_come_back_in_the_order_given(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]})
    given = [message(key=None if n % 10 else f"k{n}") for n in range(2500)]
    published = await put(store, *given)
    assert [one.id for one in published] == [m.id for m in given]
    assert all(one.created for one in published)
    assert sql(store, "select count(*) from {hf}message") == [(2500,)]
    assert sql(store, "select count(*), count(distinct message_id) from {hf}delivery") == [(2500, 2500)]


async def test_publishing_nothing_is_no_error(store: Store) -> None:
    assert await put(store) == []


async def test_a_stale_fanout_is_noticed_in_the_same_transaction(store: Store) -> None:
    await register_consumers(store, {"old": ["*"]})
    fanout = Fanout()
    await put(store, message(), fanout=fanout)
    await register_consumers(store, {"new": ["order.*"]})
    stale = fanout.current
    plain, keyed = await store.run(publish([message(), message(key="k")], fanout))
    assert await consumers_of(store, plain.id) == ["new", "old"]
    assert await consumers_of(store, keyed.id) == ["new", "old"]
    assert stale is not None
    assert fanout.current is not None
    assert fanout.current.epoch > stale.epoch, "the next publish must fan out right at once"


async def test_one_message_from_a_stale_fanout_is_not_stored_by_its_one_statement(store: Store) -> None:
    """It commits alone, so nothing could be corrected in its transaction."""
    await register_consumers(store, {"old": ["*"]})
    fanout = Fanout()
    await put(store, message(), fanout=fanout)
    await register_consumers(store, {"new": ["order.*"]})
    late = message()
    alone = publish_single([late], fanout)
    assert alone is not None
    assert await store.run(alone) is None
    assert sql(store, "select count(*) from {hf}message") == sql(store, "select count(*) from {hf}delivery") == [(1,)]
    assert await store.run(publish([late], fanout)) == [Published(late.id, True)]
    assert await consumers_of(store, late.id) == ["new", "old"]


async def test_only_one_message_for_one_consumer_is_published_by_one_statement(store: Store) -> None:
    fanout = Fanout()
    assert publish_single([job("mail")], fanout) is None, "the list is not read yet"
    await register_consumers(store, {"billing": ["order.*"], "audit": ["order.paid"]})
    await put(store, message(), fanout=fanout)
    for one in (message(), job("mail", delay=SECOND)):
        alone = publish_single([one], fanout)
        assert alone is not None
        assert alone.single
        assert await store.run(alone) == [Published(one.id, True)]
        assert len(await consumers_of(store, one.id)) == 1
    to_two, to_none = message("order.paid"), message("other.thing")
    for more in ([], [to_two], [to_none], [message(key="k")], [job("mail", unique="u")], [message(), job("mail")]):
        assert publish_single(more, fanout) is None


async def test_messages_that_differ_in_their_payload_are_published_by_one_statement(store: Store) -> None:
    fanout = Fanout()
    await register_consumers(store, {"billing": ["order.*"], "audit": ["order.paid"]}, priority=2)
    await put(store, message("other.thing"), fanout=fanout)
    events = [message(payload={"n": n, "text": '☃ "quoted" \\ \t', "none": None}) for n in range(3)]
    for alike in (events, [job("mail", {"n": n}, queue="post") for n in range(3)]):
        at_once = publish_single(alike, fanout)
        assert at_once is not None
        assert at_once.single
        assert await store.run(at_once) == [Published(m.id, True) for m in alike]
    for handed_in in events:
        (found,) = await store.run(messages(id=handed_in.id))
        assert (found.type, found.source, found.headers) == (handed_in.type, handed_in.source, handed_in.headers)
        assert orjson.loads(found.payload) == orjson.loads(handed_in.payload)
    claimed = await claim_all(store, "w1")
    assert (
        sorted((c.consumer, c.queue, c.priority) for c in claimed)
        == [("billing", "default", 2)] * 3 + [("mail", "post", 1)] * 3
    )
    for unlike in (
        [message(), message(key="k")],
        [message(), message("order.shipped")],
        [message(), message(headers={"a": "b"})],
        [job("mail"), job("mail", delay=SECOND)],
        [job("mail", unique="a"), job("mail", unique="a")],
        [message("order.paid"), message("order.paid")],
        [message(payload="x" * 300_000) for _ in range(4)],
    ):
        assert publish_single(unlike, fanout) is None


async def test_alike_messages_from_a_stale_fanout_are_not_stored_by_their_one_statement(store: Store) -> None:
    await register_consumers(store, {"old": ["*"]})
    fanout = Fanout()
    await put(store, message(), fanout=fanout)
    await register_consumers(store, {"new": ["order.*"]})
    late = [message(), message()]
    alike = publish_single(late, fanout)
    assert alike is not None
    assert await store.run(alike) is None
    assert sql(store, "select count(*) from {hf}message") == sql(store, "select count(*) from {hf}delivery") == [(1,)]
    assert await store.run(publish(late, fanout)) == [Published(m.id, True) for m in late]
    for one in late:
        assert await consumers_of(store, one.id) == ["new", "old"]


async def test_a_stale_fanout_does_not_touch_messages_that_were_there_before(store: Store) -> None:
    fanout = Fanout()
    (first,) = await put(store, message(key="k"), fanout=fanout)
    await register_consumers(store, {"new": ["*"]}, from_start=False)
    again, other = await put(store, message(key="k"), message(), fanout=fanout)
    assert again.id == first.id
    assert await consumers_of(store, first.id) == []
    assert await consumers_of(store, other.id) == ["new"]


async def test_a_retired_subscription_gets_nothing_new_and_keeps_what_it_has(store: Store) -> None:
    await register_consumers(store, {"billing": ["order.*"], "audit": ["*"]})
    fanout = Fanout()
    (before,) = await put(store, message(), fanout=fanout)
    await store.run(retire("order.*", "billing"))
    await put(store, message(), fanout=fanout)
    (after,) = await put(store, message(), fanout=fanout)
    assert await consumers_of(store, before.id) == ["audit", "billing"]
    assert await consumers_of(store, after.id) == ["audit"]


async def test_fanned_out_deliveries_use_the_consumers_policy_and_budget(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]}, retry=RetryPolicy.fixed(1, attempts=7))
    await put(store, message())
    (found,) = await all_deliveries(store, Filter(consumers=("billing",)))
    assert found.max_attempts == 7
    (claimed,) = await claim_all(store)
    assert (claimed.max_attempts, claimed.own_policy) == (None, None)


async def test_a_messages_own_policy_overrides_that_of_every_consumer_also_from_a_stale_fanout(store: Store) -> None:
    await register_consumers(store, {"old": ["*"]}, retry=RetryPolicy.fixed(1, attempts=7))
    fanout, own = Fanout(), RetryPolicy.fixed(2, attempts=3)
    await put(store, message(), fanout=fanout)
    await register_consumers(store, {"new": ["order.*"]})
    several = [message()._replace(retry=own), message(key="k")._replace(retry=own), message()]
    await store.run(publish(several, fanout))
    (alone,) = await store.run(publish([message()._replace(retry=own)], fanout))
    assert await consumers_of(store, alone.id) == ["new", "old"]
    found = await all_deliveries(store)
    assert sorted((one.consumer, one.max_attempts) for one in found) == [
        *[("new", 3)] * 3,
        ("new", 5),
        *[("old", 3)] * 3,
        *[("old", 7)] * 2,
    ]
    claimed = await claim_all(store)
    assert {(one.max_attempts, one.own_policy) for one in claimed} == {(3, own), (None, None)}


@pytest.mark.parametrize("many", [1, 1001])
async def test_published_messages_are_due_at_once(store: Store, many: int) -> None:
    await put(store, *[job() for _ in range(many)])
    assert len(await claim_all(store, limit=many, consumers=["mail"])) == many


async def test_the_failure_history_is_an_empty_list_from_the_start(store: Store) -> None:
    await register_consumers(store, {"billing": ["order.placed"]})
    keyed, unique = job("mail", key="k"), job("mail", unique="u")
    await put(store, message("order.placed"), message("order.placed"), keyed, unique)
    await put(store, message("order.placed"))
    await store.run(publish([message("order.placed") for _ in range(120)], Fanout(), own=True))
    for relation in ("delivery", "delivery_view"):
        assert sql(store, f"select distinct cast(failure_history as text) from {{hf}}{relation}") == [("[]",)]
