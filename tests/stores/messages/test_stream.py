"""Many messages at once are streamed in: the same rows, and the same promises, as one at a time."""

from datetime import timedelta

import pytest

from holdfast.core.errors import KeyConflict
from holdfast.core.message import Address
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import publish
from holdfast.stores.protocol import Store
from tests.support.builders import message, register_consumers, sql

MANY = 250
ODD = ['"', "\\", "\\N", "\\.", "a\tb", "a\nb", "a\rb", "{}", "ü", "'", "%s", ""]


def facts(store: Store) -> list[tuple[object, ...]]:
    """All that was stored and does not differ from one publish to the next."""
    return sql(
        store,
        "select m.type, m.source, m.payload, m.headers, m.generation, m.sub_epoch, d.consumer, d.queue, d.priority, "
        "d.generation, d.status, d.attempts, d.fence from {hf}message m "
        "join {hf}delivery d on d.message_id = m.id order by m.id, d.consumer",
    )


async def test_streamed_or_not_the_rows_are_the_same(store: Store) -> None:
    await register_consumers(store, {"billing": ["order.*"], "mail": ["order.placed"]})
    made = [
        message("order.placed", payload={"n": n, "odd": ODD[n % len(ODD)]}, headers={"odd": ODD[n % len(ODD)] or "-"})
        for n in range(MANY)
    ] + [message("job", payload={"n": n}, addressed=[Address(consumer="later")]) for n in range(MANY)]
    for one in made:
        await store.run(publish([one], Fanout()))
    expected = facts(store)
    sql(store, "delete from {hf}delivery")
    sql(store, "delete from {hf}message")
    published = await store.run(publish(made, Fanout(), own=True))
    assert [(one.id, one.created) for one in published] == [(one.id, True) for one in made]
    assert facts(store) == expected
    assert len(expected) == 3 * MANY


async def test_streamed_with_keyed_and_delayed_ones(store: Store) -> None:
    await register_consumers(store, {"billing": ["order.*"]})
    plain = [message("order.placed", payload={"n": n}) for n in range(MANY)]
    keyed = [message("order.placed", payload={"n": n % 20}, key=f"k{n % 20}") for n in range(40)]
    late = [message("job", addressed=[Address(consumer="later", delay=timedelta(hours=1))]) for _ in range(20)]
    await store.run(publish([*keyed[:20], *plain, *late, *keyed[20:]], Fanout(), own=True))
    assert sql(store, "select consumer, count(*) from {hf}delivery group by consumer order by consumer") == [
        ("billing", MANY + 20),
        ("later", 20),
    ]


async def test_a_stream_that_is_refused_in_the_end_leaves_nothing(store: Store) -> None:
    first, other = message(key="a", payload={"n": 1}), message(key="a", payload={"n": 2})
    with pytest.raises(KeyConflict):
        await store.run(publish([*(message() for _ in range(MANY)), first, other], Fanout(), own=True))
    assert sql(store, "select count(*) from {hf}message") == [(0,)]


async def test_a_stream_from_an_old_list_is_repaired(store: Store) -> None:
    fanout = Fanout()
    await register_consumers(store, {"billing": ["order.*"]})
    await store.run(publish([message("order.placed")], fanout))
    await register_consumers(store, {"mail": ["order.*"]})
    await store.run(publish([message("order.placed") for _ in range(MANY)], fanout, own=True))
    counts = sql(store, "select consumer, count(*) from {hf}delivery group by consumer order by consumer")
    assert counts == [("billing", MANY + 1), ("mail", MANY)]
