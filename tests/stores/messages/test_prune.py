"""Pruning: what is done and old goes in small batches; what failed or is still needed never does."""

from datetime import timedelta

from holdfast.core.change import DeadLetter, Deliver
from holdfast.core.identity import first_id
from holdfast.stores.admin.actions import cancel, discard
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.messages.prune import FROM_THE_START, prunable, prune_deliveries, prune_messages, shortest_keep
from holdfast.stores.messages.registry import Declaration, consumers, register, retire
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock, messages, runs
from tests.support.builders import (
    age,
    all_deliveries,
    catch_up_fully,
    claim_all,
    failure,
    finish,
    job,
    message,
    outcome,
    put,
    register_consumers,
    sql,
)

HOUR = timedelta(hours=1)
NOW = timedelta(0)


async def prune(store: Store, older_than: timedelta = NOW, *, discarded: bool = False) -> int:
    """Prunes deliveries to the end; how many went. Ids carry the publisher's clock, so the ceiling lies ahead."""
    top, cursor, removed = first_id(await store.run(clock()) + HOUR), FROM_THE_START, 0
    while True:
        some, following = await store.run(prune_deliveries(cursor, top, older_than, discarded=discarded))
        removed += some
        if following is None:
            return removed
        cursor = following


async def test_a_consumer_keeps_its_rows_for_as_long_as_it_declares(store: Store) -> None:
    declared = [Declaration("short", keep=60.0), Declaration("long", keep=10_000.0), Declaration("none", keep=0.0)]
    await store.run(register([*declared, Declaration("plain"), Declaration("dead", keep=0.0)], [], 0))
    assert {one.name: one.keep for one in await store.run(consumers())} == {
        **{one.name: one.keep for one in declared},
        "plain": None,
        "dead": 0.0,
    }
    assert await store.run(shortest_keep()) == timedelta(0)
    names = ("long", "none", "plain", "short", "dead")
    await put(store, *[job(name) for name in names])
    claims = {c.consumer: c for c in await claim_all(store, consumers=names)}
    for name in names[:-1]:
        await finish(store, claims[name], Deliver())
    await finish(store, claims["dead"], DeadLetter(), error=failure())
    age(store, timedelta(seconds=1), "delivery", "message")
    top = first_id(await store.run(clock()) + HOUR)

    async def removed(older_than: timedelta) -> int:
        expected = await store.run(prunable(top, older_than, by_keep=True))
        count, _ = await store.run(prune_deliveries(FROM_THE_START, top, older_than, by_keep=True))
        assert count == expected
        return count

    assert await removed(HOUR) == 1
    assert await consumers_left(store) == {"long", "plain", "short", "dead"}
    age(store, 2 * HOUR, "delivery", "message")
    assert await removed(3 * HOUR) == 1
    assert await consumers_left(store) == {"long", "plain", "dead"}
    assert await removed(HOUR) == 1
    age(store, HOUR, "delivery", "message")
    assert await removed(100 * HOUR) == 1
    assert await consumers_left(store) == {"dead"}


async def prune_all_messages(store: Store, older_than: timedelta = NOW) -> int:
    top, cursor, removed = first_id(await store.run(clock()) + HOUR), FROM_THE_START, 0
    while True:
        some, following = await store.run(prune_messages(cursor, top, older_than))
        removed += some
        if following is None:
            return removed
        cursor = following


async def finished(store: Store) -> None:
    """One delivery in each state, all of them old."""
    names = ("waiting", "running", "done", "dead", "discarded", "cancelled")
    await put(store, *[job(name) for name in names])
    claims = {c.consumer: c for c in await claim_all(store, consumers=names[1:])}
    await finish(store, claims["done"], Deliver(), keep_run=True)
    for name in ("dead", "discarded"):
        await finish(store, claims[name], DeadLetter(), error=failure())
    await store.run(discard([claims["discarded"].id], "ada", None))
    await store.run(cancel([claims["cancelled"].id], "ada", None))
    age(store, 2 * HOUR, "delivery", "message")


async def consumers_left(store: Store) -> set[str]:
    return {d.consumer for d in await all_deliveries(store)}


async def test_only_delivered_rows_go_and_their_runs_with_them(store: Store) -> None:
    await finished(store)
    (done,) = [d for d in await all_deliveries(store) if d.consumer == "done"]
    assert await prune(store, HOUR) == 1
    assert await consumers_left(store) == {"waiting", "running", "dead", "discarded", "cancelled"}
    assert await store.run(runs(done.id)) == []
    (dead,) = [d for d in await all_deliveries(store) if d.consumer == "dead"]
    assert len(await store.run(runs(dead.id))) == 1


async def test_discarded_rows_go_only_when_asked_for(store: Store) -> None:
    await finished(store)
    assert await prune(store, HOUR, discarded=True) == 2
    assert await consumers_left(store) == {"waiting", "running", "done", "dead"}


async def test_what_is_not_old_enough_stays(store: Store) -> None:
    await finished(store)
    assert await prune(store, 3 * HOUR) == 0
    assert await prune(store, 3 * HOUR, discarded=True) == 0
    assert len(await all_deliveries(store)) == 6


async def test_the_ceiling_leaves_younger_ids_alone(store: Store) -> None:
    await finished(store)
    low = first_id(await store.run(clock()), -24 * HOUR)
    assert await store.run(prune_deliveries(FROM_THE_START, low, NOW)) == (0, None)
    assert await store.run(prunable(low, NOW)) == 0


async def test_thousands_go_in_batches(store: Store) -> None:
    await put(store, *[job() for _ in range(2100)])
    while claims := await claim_all(store, consumers=["mail"]):
        await store.run(settle("w1", [outcome(c, Deliver()) for c in claims]))
    age(store, HOUR, "delivery")
    top = first_id(await store.run(clock()) + HOUR)
    assert await store.run(prunable(top, NOW)) == 2100
    first, cursor = await store.run(prune_deliveries(FROM_THE_START, top, NOW))
    assert first == 1000
    assert cursor is not None
    assert first + await prune(store) == 2100
    assert await all_deliveries(store) == []


async def test_rows_that_must_stay_do_not_stop_the_cursor(store: Store) -> None:
    await put(store, *[job("waiting", delay=HOUR) for _ in range(1500)], job("done"))
    (claimed,) = await claim_all(store, consumers=["done"])
    await finish(store, claimed, Deliver())
    age(store, HOUR, "delivery")
    assert await prune(store) == 1


async def test_prunable_counts_what_pruning_would_remove(store: Store) -> None:
    await finished(store)
    top = first_id(await store.run(clock()) + HOUR)
    assert await store.run(prunable(top, HOUR)) == 1
    assert await store.run(prunable(top, HOUR, discarded=True)) == 2
    assert await store.run(prunable(top, 3 * HOUR)) == 0


async def test_messages_go_only_when_no_delivery_needs_them(store: Store) -> None:
    await finished(store)
    assert await prune_all_messages(store, HOUR) == 0
    await prune(store, HOUR)
    assert await prune_all_messages(store, 3 * HOUR) == 0
    assert await prune_all_messages(store, HOUR) == 1
    assert {m.type for m in await store.run(messages())} == {
        f"job.{name}" for name in ("waiting", "running", "dead", "discarded", "cancelled")
    }


async def test_messages_stay_while_a_subscription_has_not_seen_them(store: Store) -> None:
    await put(store, message())
    await register_consumers(store, {"late": ["user.*"]})
    age(store, HOUR, "message")
    assert await prune_all_messages(store) == 0
    await catch_up_fully(store)
    assert await prune_all_messages(store) == 1


async def test_a_retired_subscription_keeps_no_message(store: Store) -> None:
    await put(store, message())
    await register_consumers(store, {"late": ["*"]})
    await store.run(retire("*", "late"))
    age(store, HOUR, "message")
    assert await prune_all_messages(store) == 1


async def test_what_was_handled_goes_with_its_message_and_not_before(store: Store) -> None:
    await put(store, message(key="k"), message())
    for key in ("k", "foreign"):
        id = "00000000-0000-7000-8000-000000000000"
        sql(
            store,
            "insert into {hf}handled (consumer, source, key, delivery_id) "
            f"values ('billing', 'shop', '{key}', '{id}')",
        )
    assert await prune(store) == 0
    assert len(sql(store, "select key from {hf}handled")) == 2
    age(store, HOUR, "message")
    assert await prune_all_messages(store) == 2
    assert sql(store, "select key from {hf}handled") == [("foreign",)]


async def test_a_consumer_does_not_get_again_what_was_pruned(store: Store) -> None:
    """Neither by a new pattern, nor by a new queue, nor by coming back."""
    await register_consumers(store, {"billing": ["order.*"]})
    await put(store, message())
    (claimed,) = await claim_all(store)
    await finish(store, claimed, Deliver())
    age(store, HOUR, "delivery")
    assert await prune(store) == 1
    await register_consumers(store, {"billing": ["order.placed", "*"]}, queue="payments")
    assert await catch_up_fully(store) == 0
    await store.run(retire("order.*", "billing"))
    await register_consumers(store, {"billing": ["order.*"]}, queue="payments")
    assert await catch_up_fully(store) == 0
    (newer,) = await put(store, message())
    assert [d.message_id for d in await all_deliveries(store)] == [newer.id]


async def test_a_new_consumer_still_gets_what_another_has_pruned(store: Store) -> None:
    await register_consumers(store, {"billing": ["*"]})
    await put(store, message())
    (claimed,) = await claim_all(store)
    await finish(store, claimed, Deliver())
    age(store, HOUR, "delivery")
    await prune(store)
    await register_consumers(store, {"audit": ["*"]})
    assert await catch_up_fully(store) == 1
