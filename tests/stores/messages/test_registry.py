"""The registry: declaring consumers is repeatable, and a subscription misses nothing and gets nothing twice."""

from dataclasses import replace

import pytest

from holdfast.core.errors import InvalidName, NotFound
from holdfast.core.retry import RetryPolicy
from holdfast.stores.admin.actions import block_consumer, pause_consumer
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.registry import Declaration, EventSubscription, catch_up, consumers, register, retire
from holdfast.stores.operation import Operation, Steps
from holdfast.stores.protocol import Store
from tests.support.builders import SECOND, all_deliveries, catch_up_fully, job, message, put, register_consumers, sql


async def test_registering_twice_changes_nothing(store: Store) -> None:
    policy = RetryPolicy.exponential(attempts=8, base="250ms", factor=1.5, cap="90s", jitter="equal")
    for expected in (True, False):
        changed = await register_consumers(
            store, {"billing": ["order.*", "order.placed"]}, queue="payments", priority=2, retry=policy, generation=3
        )
        assert changed is expected
    before = sql(store, "select * from {hf}subscription order by pattern")
    await register_consumers(store, {"billing": ["order.placed"]}, queue="payments", priority=2, retry=policy)
    assert sql(store, "select * from {hf}subscription order by pattern") == before


async def test_a_consumer_is_known_as_it_was_declared(store: Store) -> None:
    policy = RetryPolicy.schedule([0, 1, "2s"])
    await register_consumers(store, {"billing": ["*"]}, queue="payments", priority=0, retry=policy, generation=4)
    (found,) = await store.run(consumers())
    assert found.declaration == Declaration("billing", "payments", 0, policy)
    assert (found.generation, found.paused_at, found.blocked_until) == (4, None, None)


async def test_a_consumers_generation_is_that_of_its_first_registration(store: Store) -> None:
    """What was published for it then must still be run by the workers of that time."""
    await register_consumers(store, {"billing": ["*"]}, generation=4)
    await register_consumers(store, {"billing": ["*"]}, queue="payments", generation=9)
    (found,) = await store.run(consumers())
    assert (found.generation, found.queue) == (4, "payments")


async def test_a_new_declaration_keeps_pauses_and_blocks(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]})
    await store.run(pause_consumer("billing", "ada", None))
    await store.run(block_consumer("billing", "db", SECOND, "worker-1"))
    await register_consumers(store, {"billing": ["*"]}, queue="payments")
    (found,) = await store.run(consumers())
    assert found.paused_at is not None
    assert found.blocked_resource == "db"


async def test_from_the_start_gets_earlier_events_by_catching_up(store: Store) -> None:
    first, second = await put(store, message("order.placed"), message("user.added"))
    await register_consumers(store, {"billing": ["order.*"], "everything": ["*"]})
    assert await catch_up_fully(store) == 3
    found = [(d.message_id, d.consumer) for d in await all_deliveries(store)]
    assert sorted(found) == sorted([(first.id, "billing"), (first.id, "everything"), (second.id, "everything")])
    assert await catch_up_fully(store) == 0


async def test_from_now_gets_later_events_only(store: Store) -> None:
    await put(store, message())
    await register_consumers(store, {"billing": ["*"]}, from_start=False)
    assert await catch_up_fully(store) == 0
    (later,) = await put(store, message())
    assert [d.message_id for d in await all_deliveries(store)] == [later.id]
    assert await catch_up_fully(store) == 0


async def test_an_event_of_a_publisher_with_an_old_list_is_given_by_catching_up(store: Store) -> None:
    """As if the publisher had been in flight: its message carries the epoch it knew."""
    await register_consumers(store, {"old": ["*"]})
    (published,) = await put(store, message())
    await register_consumers(store, {"new": ["*"]}, from_start=True)
    sql(store, "update {hf}subscription set mark_position = 0")
    assert await catch_up_fully(store) == 1
    assert {d.consumer for d in await all_deliveries(store)} == {"old", "new"}
    assert {d.message_id for d in await all_deliveries(store)} == {published.id}


async def test_catching_up_takes_thousands_in_batches(store: Store) -> None:
    await register_consumers(store, {"ahead": ["*"]})
    await put(store, *[message() for _ in range(2100)])
    await catch_up_fully(store)
    await register_consumers(store, {"late": ["*"], "picky": ["order.placed", "user.*"]})
    steps = [await store.run(catch_up()) for _ in range(4)]
    assert steps == [(2000, True), (2000, True), (200, False), (0, False)]
    counted = sql(store, "select consumer, count(*) from {hf}delivery group by consumer order by consumer")
    assert counted == [("ahead", 2100), ("late", 2100), ("picky", 2100)]


async def test_a_subscription_that_is_ahead_does_not_pull_others_along(store: Store) -> None:
    await put(store, *[message() for _ in range(1100)])
    await register_consumers(store, {"behind": ["*"]})
    await register_consumers(store, {"ahead": ["*"]}, from_start=False)
    await put(store, message())
    assert await catch_up_fully(store) == 1100
    counted = sql(store, "select consumer, count(*) from {hf}delivery group by consumer order by consumer")
    assert counted == [("ahead", 1), ("behind", 1101)]


async def test_a_new_declaration_brings_no_second_delivery(store: Store) -> None:
    """Neither does a second pattern that matches the same."""
    await register_consumers(store, {"billing": ["*"]})
    await put(store, message())
    await register_consumers(store, {"billing": ["*", "order.*"]}, queue="payments")
    assert await catch_up_fully(store) == 0
    assert len(await all_deliveries(store)) == 1


async def test_catching_up_passes_over_thousands_that_do_not_match(store: Store) -> None:
    await put(store, *[message("user.added") for _ in range(1200)], message("order.placed"))
    await register_consumers(store, {"billing": ["order.*"]})
    assert await store.run(catch_up()) == (0, True)
    assert await store.run(catch_up()) == (1, False)


async def test_a_late_delivery_gets_queue_priority_and_at_least_the_consumers_generation(store: Store) -> None:
    await put(store, message(generation=2), message(generation=9))
    await register_consumers(store, {"billing": ["*"]}, queue="payments", priority=3, generation=5)
    await catch_up_fully(store)
    found = await all_deliveries(store)
    assert {(d.queue, d.priority) for d in found} == {("payments", 3)}
    assert sorted(d.generation for d in found) == [5, 9]


async def test_addressed_messages_are_not_caught_up(store: Store) -> None:
    """No consumer subscribes to what was meant for one, with a key, unique or plain."""
    await put(store, job("mail"), job("mail", key="k"), job("mail", unique="u"))
    await register_consumers(store, {"everything": ["*"]})
    assert await catch_up_fully(store) == 0


async def test_a_subscription_that_returns_continues_from_its_mark(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]})
    await put(store, message())
    await catch_up_fully(store)
    await store.run(retire("*", "billing"))
    (missed,) = await put(store, message())
    assert await catch_up_fully(store) == 0
    sql(store, "delete from {hf}delivery")
    assert await register_consumers(store, {"billing": ["*"]})
    assert await catch_up_fully(store) == 1
    assert [d.message_id for d in await all_deliveries(store)] == [missed.id]


async def test_a_retired_subscription_keeps_its_mark_while_others_continue(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"], "audit": ["*"]})
    await put(store, message())
    await catch_up_fully(store)
    await store.run(retire("*", "billing"))
    (missed,) = await put(store, message())
    await register_consumers(store, {"audit": ["*"]}, queue="slow")
    await catch_up_fully(store)
    await register_consumers(store, {"billing": ["*"]})
    assert await catch_up_fully(store) == 1
    assert missed.id in {d.message_id for d in await all_deliveries(store) if d.consumer == "billing"}


async def test_a_retired_subscription_is_not_caught_up(store: Store) -> None:
    await put(store, message())
    await register_consumers(store, {"billing": ["*"], "audit": ["*"]})
    await store.run(retire("*", "billing"))
    await register_consumers(store, {"audit": ["*"]}, queue="slow")
    assert await catch_up_fully(store) == 1
    assert [d.consumer for d in await all_deliveries(store)] == ["audit"]


async def test_a_retired_subscription_never_has_more_to_catch_up(store: Store) -> None:
    await put(store, *[message() for _ in range(1001)])
    await register_consumers(store, {"billing": ["*"]})
    await store.run(retire("*", "billing"))
    assert await store.run(catch_up()) == (0, False)


async def test_retiring_what_is_not_active_is_an_error(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]})
    with pytest.raises(NotFound, match="order"):
        await store.run(retire("order.*", "billing"))
    await store.run(retire("*", "billing"))
    with pytest.raises(NotFound):
        await store.run(retire("*", "billing"))


async def test_a_changed_queue_reaches_publishers_that_hold_an_old_list(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]}, queue="old")
    fanout = Fanout()
    await put(store, message(), fanout=fanout)
    await register_consumers(store, {"billing": ["*"]}, queue="new")
    (noticing,) = await put(store, message(), fanout=fanout)
    (after,) = await put(store, message(), fanout=fanout)
    queues = {d.message_id: d.queue for d in await all_deliveries(store)}
    assert queues[after.id] == "new"
    assert noticing.id in queues


async def test_a_consumer_without_subscriptions_can_be_declared(store: Store) -> None:
    assert await store.run(register([Declaration("mail")], [], 0))
    assert not await store.run(register([Declaration("mail")], [], 0))


@pytest.mark.parametrize("name", ['a"b', "a'b", "a$$b", "a.b", "a\nb", "", "a b", "a;b", "x" * 101, "-a"])
def test_names_that_could_mislead_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        Declaration(name)
    with pytest.raises(InvalidName):
        Declaration("billing", queue=name)


@pytest.mark.parametrize("pattern", ["", "order.", ".order", "order..x", "*.order", "or*", "order.**", "a b", "a\n"])
def test_patterns_that_match_nothing_are_refused(pattern: str) -> None:
    with pytest.raises(InvalidName):
        EventSubscription(pattern, "billing")


def counted(registration: Operation[bool], rows_read: dict[str, int]) -> Operation[bool]:
    """The registration; adds the rows that each of its statements returns to `rows_read`."""

    def start() -> Steps[bool]:
        steps = registration.start()
        query = next(steps)
        while True:
            rows = yield query
            rows_read[query.name] = rows_read.get(query.name, 0) + len(rows)
            try:
                query = steps.send(rows)
            except StopIteration as end:
                return bool(end.value)

    return replace(registration, start=start)


async def test_registering_a_consumer_reads_no_other_one(store: Store) -> None:
    """A store with 100,000 webhook endpoints has as many consumers: reading them all takes a second."""
    await register_consumers(store, {f"webhook:{n}": ["order.*"] for n in range(50)})
    rows_read: dict[str, int] = {}
    for expected in (True, False):
        registration = register([Declaration("billing")], [EventSubscription("order.*", "billing")], 0)
        assert await store.run(counted(registration, rows_read)) is expected
    assert max(rows_read.values()) <= 2


async def test_registering_many_consumers_takes_no_more_statements_than_one(store: Store) -> None:
    """A round trip for each of 5,000 consumers made the start of a worker take 24 s."""
    queries: dict[str, int] = {}

    def declared(count: int, queue: str) -> Operation[bool]:
        names = [f"{queue}{n}" for n in range(count)]
        declarations = [Declaration(name, queue=queue) for name in names]
        return register(declarations, [EventSubscription("order.*", name) for name in names] * 2, 0)

    assert await store.run(counted(declared(1, "one"), queries))
    one = list(queries)
    queries.clear()
    assert await store.run(counted(declared(300, "many"), queries))
    assert list(queries) == one
    found = {consumer.name: consumer.queue for consumer in await store.run(consumers())}
    assert found == {"one0": "one"} | {f"many{n}": "many" for n in range(300)}
    assert not await store.run(declared(300, "many"))
