"""An operator with nothing but psql: replaying by SQL function, and views that can be read."""

import threading
from uuid import UUID

import psycopg
import pytest

from holdfast.core.change import DeadLetter, Deliver
from holdfast.stores.admin.actions import audit
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries.query import deliveries_of
from tests.support.builders import (
    all_deliveries,
    claim_all,
    claim_one,
    delivery,
    failure,
    finish,
    fresh_id,
    message,
    put,
    register_consumers,
    sibling_of,
    sql,
    until_one_waits,
)


def psql(store: PostgresStore, text: str, *values: object) -> list[dict[str, object]]:
    with psycopg.connect(store.conninfo, row_factory=psycopg.rows.dict_row) as connection:
        return connection.execute(text, values).fetchall()


async def dead_event(store: PostgresStore) -> UUID:
    """An event that billing and audit have failed, and mail has done."""
    await register_consumers(store, {"billing": ["*"], "audit": ["*"], "mail": ["*"]})
    (published,) = await put(store, message("order.placed", {"n": 7}, key="order:7"))
    for claimed in await claim_all(store):
        change = Deliver() if claimed.consumer == "mail" else DeadLetter()
        await finish(store, claimed, change, error=None if claimed.consumer == "mail" else failure("boom"))
    return published.id


async def test_outbox_replay_replays_every_dead_letter_of_an_event(postgres_store: PostgresStore) -> None:
    store = postgres_store
    event = await dead_event(store)
    await dead_letter_of_another_event(store)
    rows = psql(store, "select * from holdfast.outbox_replay(%s, 42, 'ada', 'fixed in 42')", event)
    assert sorted((r["delivery_consumer"], r["to_generation"], r["new_fence"]) for r in rows) == [
        ("audit", 42, 2),
        ("billing", 42, 2),
    ]
    after = {one.delivery.consumer: one.delivery for one in await store.run(deliveries_of(event))}
    assert {name: d.status.value for name, d in after.items()} == {
        "audit": "pending",
        "billing": "pending",
        "mail": "delivered",
    }
    (cycle,) = after["billing"].failure_history
    assert (cycle.last_error, cycle.replayed_by, cycle.reason) == ("boom", "ada", "fixed in 42")
    entries = await store.run(audit())
    assert [(e.actor, e.action, e.reason) for e in entries] == [("ada", "replay", "fixed in 42")] * 2


async def dead_letter_of_another_event(store: PostgresStore) -> None:
    await put(store, message("order.placed"))
    for claimed in await claim_all(store):
        await finish(store, claimed, DeadLetter(), error=failure())


async def test_outbox_replay_replays_one_event_and_not_its_neighbour(postgres_store: PostgresStore) -> None:
    """Their ids share the first half, so that the ranges of their deliveries are the same."""
    store = postgres_store
    await register_consumers(store, {"billing": ["*"]})
    one = message()
    await put(store, one, sibling_of(one))
    for claimed in await claim_all(store):
        await finish(store, claimed, DeadLetter(), error=failure())
    assert len(psql(store, "select * from holdfast.outbox_replay(%s, 1, 'ada')", one.id)) == 1


async def test_outbox_replay_needs_no_reason_and_may_keep_the_generation(postgres_store: PostgresStore) -> None:
    event = await dead_event(postgres_store)
    rows = psql(postgres_store, "select * from holdfast.outbox_replay(%s, null, 'ada')", event)
    assert [r["to_generation"] for r in rows] == [0, 0]
    assert psql(postgres_store, "select * from holdfast.outbox_replay(%s, null, 'ada')", event) == []
    assert psql(postgres_store, "select * from holdfast.outbox_replay(%s, null, 'ada')", fresh_id()) == []


async def test_outbox_replay_without_a_name_is_refused(postgres_store: PostgresStore) -> None:
    event = await dead_event(postgres_store)
    with pytest.raises(psycopg.errors.NotNullViolation):
        psql(postgres_store, "select * from holdfast.outbox_replay(%s, 1, null)", event)
    assert sum(d.dead for d in await all_deliveries(postgres_store)) == 2


async def test_of_three_operators_at_once_one_replays(postgres_store: PostgresStore) -> None:
    store = postgres_store
    claimed = await claim_one(store)
    await finish(store, claimed, DeadLetter(), error=failure())
    together = threading.Barrier(3)
    replayed: list[int] = []

    def operator(name: str) -> None:
        with psycopg.connect(store.conninfo) as connection:
            connection.execute("select 1")
            together.wait(10)
            cursor = connection.execute("select * from holdfast.outbox_replay(%s, 42, %s)", (claimed.message_id, name))
            replayed.append(len(cursor.fetchall()))

    threads = [threading.Thread(target=operator, args=(name,)) for name in ("ada", "bob", "eve")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(replayed) == [0, 0, 1]
    assert (await delivery(store, claimed.id)).fence == claimed.fence + 1
    assert len(await store.run(audit())) == 1


async def test_an_operator_who_waits_for_another_replays_nothing(postgres_store: PostgresStore) -> None:
    """The second call starts while the first has replayed and not committed: it must look again after the wait."""
    store = postgres_store
    claimed = await claim_one(store)
    await finish(store, claimed, DeadLetter(), error=failure())
    call = "select * from holdfast.outbox_replay(%s, 42, %s)"
    second: list[int] = []
    with psycopg.connect(store.conninfo) as first:
        assert len(first.execute(call, (claimed.message_id, "ada")).fetchall()) == 1
        thread = threading.Thread(target=lambda: second.append(len(psql(store, call, claimed.message_id, "bob"))))
        thread.start()
        until_one_waits(store)
        first.commit()
    thread.join(30)
    assert second == [0]
    assert (await delivery(store, claimed.id)).fence == claimed.fence + 1
    assert [entry.actor for entry in await store.run(audit())] == ["ada"]


async def test_the_delivery_view_says_who_it_is_for_and_how_it_is_doing(postgres_store: PostgresStore) -> None:
    event = await dead_event(postgres_store)
    rows = psql(postgres_store, "select * from holdfast.delivery_view where message_id = %s", event)
    view = {row["consumer"]: row for row in rows}
    assert view["mail"]["status"] == "delivered"
    dead = view["billing"]
    assert (dead["type"], dead["source"], dead["key"]) == ("order.placed", "shop", "order:7")
    assert (dead["attempts"], dead["max_attempts"], dead["last_error"]) == (1, 5, "boom")
    assert (dead["discarded"], dead["payload"], dead["worker"]) == (False, {"n": 7}, None)
    wanted = [
        "id",
        "message_id",
        "type",
        "source",
        "consumer",
        "queue",
        "priority",
        "status",
        "run_at",
        "attempts",
        "max_attempts",
        "lease_until",
        "worker",
        "generation",
        "last_error",
        "first_failed_at",
        "failure_history",
        "created_at",
        "claimed_at",
        "completed_at",
    ]
    assert set(wanted) <= set(dead), "M1.5 names these"


async def test_the_dead_letter_view_holds_dead_letters_alone(postgres_store: PostgresStore) -> None:
    store = postgres_store
    event = await dead_event(store)
    assert {r["consumer"] for r in psql(store, "select * from holdfast.dead_letter")} == {"billing", "audit"}
    sql(store, "update {hf}delivery set discarded_at = now() where consumer = 'audit'")
    assert {r["consumer"] for r in psql(store, "select * from holdfast.dead_letter")} == {"billing"}
    psql(store, "select * from holdfast.outbox_replay(%s, 1, 'ada')", event)
    assert psql(store, "select * from holdfast.dead_letter") == []
