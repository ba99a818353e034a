"""Publishing for consumers with flow control: each delivery gets its key and the order of its publish."""

import pytest

from holdfast.core.flow import FlowSettings, key_rule
from holdfast.core.message import NewMessage
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import LazyMessages, publish
from holdfast.stores.messages.registry import Declaration, EventSubscription, register
from holdfast.stores.protocol import Store
from tests.support.builders import job, message, put, register_consumers, sql

BY_TENANT = FlowSettings(key=key_rule("by", "tenant"), limit=2, limit_by_key=True)
ORDERED = FlowSettings(key=key_rule("by", "tenant"), order="block")


async def register_flow(store: Store, name: str, flow: FlowSettings, *patterns: str) -> None:
    declared = [Declaration(name, flow=flow.text)]
    await store.run(register(declared, [EventSubscription(pattern, name) for pattern in patterns], 0))


async def keys(store: Store, consumer: str = "mail") -> list[tuple[str | None, bool]]:
    """The keys of a consumer's deliveries in the order of their messages, each with whether it has a place in the order."""
    rows = sql(
        store,
        "select d.flow_key, d.flow_seq = m.position from {hf}delivery d join {hf}message m on m.id = d.message_id "
        f"where d.consumer = '{consumer}' order by m.position",
    )
    return [(None if key is None else str(key), bool(ordered)) for key, ordered in rows]


async def test_an_event_gets_the_key_by_the_stored_rule(store: Store) -> None:
    await register_flow(store, "mail", BY_TENANT, "order.placed")
    await register_consumers(store, {"plain": ["order.*"]})
    await put(store, message(payload={"tenant": "a"}), message(payload={"n": 1}))
    assert await keys(store) == [("a", False), ("", False)]
    assert await keys(store, "plain") == [(None, False), (None, False)]


async def test_an_ordered_delivery_has_the_position_of_its_message(store: Store) -> None:
    await register_flow(store, "mail", ORDERED, "order.placed")
    await put(store, *[message(payload={"tenant": "a"}) for _ in range(3)])
    await put(store, message(payload={"tenant": "b"}))
    assert await keys(store) == [("a", True)] * 3 + [("b", True)]


@pytest.mark.parametrize("given", [{}, {"key": "k1"}, {"unique": "u1"}], ids=["plain", "key", "unique"])
async def test_a_job_gets_the_key_by_the_declared_rule(store: Store, given: dict[str, str]) -> None:
    await register_flow(store, "mail", ORDERED)
    fanout = Fanout(flows={"mail": ORDERED})
    for _ in range(2):
        await put(store, job(payload={"tenant": "a"}, **given), fanout=fanout)  # type: ignore[arg-type]
    assert await keys(store) == [("a", True)] * (1 if given else 2)


async def test_a_function_is_evaluated_where_the_app_is_loaded(store: Store) -> None:
    by_function = FlowSettings(key=key_rule("by", lambda payload: payload["n"] % 2), fair=True)
    await register_flow(store, "mail", by_function, "order.placed")
    await put(store, message(payload={"n": 3}), fanout=Fanout(flows={"mail": by_function}))
    await put(store, message(payload={"n": 3}))
    assert await keys(store) == [("1", False), (None, False)]


async def test_many_events_are_not_streamed_past_their_keys(store: Store) -> None:
    await register_flow(store, "mail", ORDERED, "order.placed")
    many: list[NewMessage] = [message(payload={"tenant": str(n % 3)}) for n in range(250)]
    await store.run(publish(LazyMessages(lambda: iter([many])), Fanout(), own=True))
    assert await keys(store) == [(str(n % 3), True) for n in range(250)]


async def test_a_publisher_with_an_outdated_list_learns_a_new_rule(store: Store) -> None:
    await register_consumers(store, {"mail": ["order.placed"]})
    fanout = Fanout()
    await put(store, message(payload={"tenant": "a"}), fanout=fanout)
    await register_flow(store, "mail", ORDERED, "order.placed")
    await put(store, message(payload={"tenant": "a"}), fanout=fanout)
    await put(store, message(payload={"tenant": "a"}), fanout=fanout)
    # The second was written before its publisher knew; a worker adopts it.
    assert await keys(store) == [(None, False), (None, False), ("a", True)]


async def test_one_call_with_keys_keeps_its_order(store: Store) -> None:
    await register_flow(store, "mail", ORDERED, "order.placed")
    await put(store, message(key="b", payload={"tenant": "a", "n": 0}))
    first = [
        message(key="z", payload={"tenant": "a", "n": 1}),
        message(key="b", payload={"tenant": "a", "n": 0}),
        message(key="a", payload={"tenant": "a", "n": 2}),
        message(payload={"tenant": "a", "n": 3}),
        message(key="m", payload={"tenant": "b", "n": 4}),
    ]
    await put(store, *first)
    await put(store, message(payload={"tenant": "a", "n": 5}))
    number = "m.payload ->> 'n'"
    rows = sql(
        store,
        f"select {number} from {{hf}}delivery d join {{hf}}message m on m.id = d.message_id "
        "where d.consumer = 'mail' order by d.flow_seq",
    )
    assert [int(str(row[0])) for row in rows] == [0, 1, 2, 3, 4, 5]
