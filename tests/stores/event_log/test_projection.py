"""A rebuild's steps: who may make them, whom they keep out, and what they make of deliveries."""

import sqlite3
from contextlib import closing
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from holdfast.core.change import DeadLetter, Deliver
from holdfast.core.delivery import Status
from holdfast.core.errors import RebuildLost, Refused
from holdfast.core.identity import first_id
from holdfast.stores.admin.actions import discard
from holdfast.stores.connections.connection import Psycopg, Sqlite3, run_on
from holdfast.stores.deliveries.claim import Lane, claim, discover_and_claim, lanes
from holdfast.stores.event_log.log import Cursor, end_of_log
from holdfast.stores.event_log.position import PositionLease
from holdfast.stores.event_log.projection import (
    ProjectorBusy,
    RebuildResult,
    RebuildStep,
    assert_idle,
    begin_rebuild,
    checkpoint,
    ended,
    hold,
    projectors,
    prolong_hold,
    release,
    set_aside,
    started,
    stop_rebuild,
    with_projectors,
)
from holdfast.stores.messages.backfill import FIRST, backfill
from holdfast.stores.messages.registry import Declaration, EventSubscription, register
from holdfast.stores.operation import Operation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from tests.support.builders import (
    LEASE,
    SECOND,
    all_deliveries,
    claim_all,
    expire,
    failure,
    finish,
    message,
    put,
    sql,
    start,
)

LANE = Lane("default", "totals", 0, 1)
OTHER = Lane("default", "mail", 0, 1)


async def projecting(store: Store, owner: str = "me") -> PositionLease:
    """A projector next to another consumer, and the right to rebuild it."""
    names = ["totals", "mail"]
    declared = register(
        [Declaration(name) for name in names], [EventSubscription("order.*", name) for name in names], 0
    )
    await store.run(with_projectors(declared, ["totals"]))
    return await store.run(begin_rebuild("totals", owner, LEASE, "ada"))


async def begun(store: Store, held: PositionLease, *, online: bool = True) -> None:
    def steps() -> Any:
        return started(held, online=online, resume=False, total=0, actor="ada", reason=None)

    await store.run(Operation(steps))


async def sure(store: Store, held: PositionLease) -> None:
    await store.run(Operation(lambda: assert_idle(held)))


async def end(store: Store, held: PositionLease, cursor: Cursor) -> RebuildResult:
    return await store.run(Operation(lambda: ended(held, cursor, 1, (), "ada", "fixed")))


def lapse(store: Store, table: str, column: str) -> None:
    amount = f"interval '{LEASE + SECOND}'" if isinstance(store, PostgresStore) else "31000"
    sql(store, f"update {{hf}}{table} set {column} = {column} - {amount}")


async def test_no_worker_claims_for_a_projector_that_is_held(store: Store) -> None:
    held = await projecting(store)
    await put(store, message())
    await store.run(hold(held, LEASE))
    assert [lane.consumer for lane in await store.run(lanes(["totals", "mail"], 0))] == ["mail"]
    assert await store.run(discover_and_claim(["totals"], 0, "w1", LEASE, 10)) == []
    # Of lanes that a worker has known for a while, too.
    claimed = await store.run(claim([LANE, OTHER], "w1", LEASE, 10))
    assert [one.consumer for one in claimed] == ["mail"]
    await store.run(release(held))
    assert len(await store.run(claim([LANE], "w1", LEASE, 10))) == 1


async def test_a_hold_expires_and_is_not_prolonged_after_that(store: Store) -> None:
    held = await projecting(store)
    await put(store, message())
    await store.run(hold(held, LEASE))
    assert await store.run(prolong_hold(held, LEASE))
    lapse(store, "projector", "held_until")
    # A worker may have claimed in the meantime.
    assert not await store.run(prolong_hold(held, LEASE))
    with pytest.raises(RebuildLost):
        await sure(store, held)
    assert len(await claim_all(store)) == 2


async def test_a_rebuild_takes_over_when_no_live_worker_serves_the_projector(store: Store) -> None:
    held = await projecting(store)
    await put(store, message())
    await start(store, "w1", ["totals"])
    await store.run(claim([LANE], "w1", LEASE, 10))
    await store.run(hold(held, LEASE))
    with pytest.raises(ProjectorBusy):
        await sure(store, held)
    lapse(store, "delivery", "lease_until")
    with pytest.raises(ProjectorBusy):
        await sure(store, held)
    lapse(store, "worker", "alive_until")
    await sure(store, held)


async def test_a_second_rebuild_is_refused_while_the_first_lives(store: Store) -> None:
    held = await projecting(store)
    await begun(store, held)
    with pytest.raises(Refused, match="already being rebuilt by ada"):
        await store.run(begin_rebuild("totals", "another", LEASE, "bob"))
    lapse(store, "position", "lease_until")
    assert (await store.run(begin_rebuild("totals", "another", LEASE, "bob"))).fence == held.fence + 1
    with pytest.raises(RebuildLost):
        await store.run(hold(held, LEASE))
    with pytest.raises(RebuildLost):
        await begun(store, held)


async def test_one_who_was_replaced_cannot_commit_what_it_applied(store: Store) -> None:
    old = await projecting(store)
    lapse(store, "position", "lease_until")
    await projecting(store, "another")
    _refused(store, RebuildStep(old, old.cursor, Cursor("", "", 7)))


async def test_a_step_of_a_rebuild_is_made_once(store: Store) -> None:
    held = await projecting(store)
    place = RebuildStep(held, held.cursor, Cursor("", "", 7))
    await store.run(checkpoint(place, LEASE, LEASE))
    _refused(store, place)


def _refused(store: Store, place: RebuildStep) -> None:
    """The effect is not committed, even if the handler suppresses the error."""
    on_postgres = isinstance(store, PostgresStore)
    connection: Any = psycopg.connect(store.conninfo) if on_postgres else sqlite3.connect(store.path)  # type: ignore[attr-defined]
    with closing(connection) as db:
        db.execute(f"insert into {store.dialect.prefix}queue (name) values ('ghost')")  # type: ignore[attr-defined]
        with pytest.raises(RebuildLost):
            run_on(checkpoint(place, LEASE, LEASE), store.dialect, Psycopg(db) if on_postgres else Sqlite3(db))
        db.commit()
    assert sql(store, "select name from {hf}queue") == []


async def test_the_end_makes_done_what_was_applied_and_nothing_else(store: Store) -> None:
    held = await projecting(store)
    dead, waiting = await put(store, message(), message())
    claimed = {one.message_id: one for one in await store.run(claim([LANE], "w1", LEASE, 10))}
    await finish(store, claimed[dead.id], DeadLetter(), error=failure())
    cursor = await store.run(Operation(end_of_log))
    (later,) = await put(store, message())
    expire(store)
    await begun(store, held)
    await store.run(hold(held, LEASE))

    assert await end(store, held, cursor) == RebuildResult(done=2, resolved=1)
    found = {one.message_id: one for one in await all_deliveries(store) if one.consumer == "totals"}
    assert {id: one.status for id, one in found.items()} == {
        dead.id: Status.DELIVERED,
        waiting.id: Status.DELIVERED,
        later.id: Status.PENDING,
    }
    assert found[dead.id].failure_history[-1].replayed_by == "ada"
    # The former owner cannot finish, and does not take this for its own result.
    assert found[waiting.id].fence == claimed[waiting.id].fence + 1
    assert not await finish(store, claimed[waiting.id], Deliver())
    others = [one.status for one in await all_deliveries(store) if one.consumer == "mail"]
    assert others == [Status.PENDING] * 3
    (state,) = await store.run(projectors())
    assert not state.held
    assert len(await store.run(claim([LANE], "w1", LEASE, 10))) == 1


async def test_a_discarded_letter_is_left_as_it_is(store: Store) -> None:
    held = await projecting(store)
    aside, kept = await put(store, message(), message())
    claimed = {one.message_id: one for one in await store.run(claim([LANE], "w1", LEASE, 10))}
    for one in claimed.values():
        await finish(store, one, DeadLetter(), error=failure())
    await store.run(discard([claimed[aside.id].id], "ada", None))
    assert await store.run(set_aside("totals", [aside.id, kept.id])) == {aside.id}
    await store.run(hold(held, LEASE))
    assert await end(store, held, await store.run(Operation(end_of_log))) == RebuildResult(done=1, resolved=1)


async def test_a_rebuild_cannot_end_without_its_hold_or_its_fence(store: Store) -> None:
    held = await projecting(store)
    cursor = await store.run(Operation(end_of_log))
    with pytest.raises(RebuildLost):
        await end(store, held, cursor)
    await store.run(hold(held, LEASE))
    with pytest.raises(RebuildLost):
        await end(store, held._replace(fence=held.fence + 1), cursor)
    assert await end(store, held, cursor) == RebuildResult(done=0, resolved=0)


async def test_a_rebuild_that_stops_lets_go_unless_it_is_in_place(store: Store) -> None:
    for online in (True, False):
        held = await projecting(store)
        await begun(store, held, online=online)
        await store.run(hold(held, LEASE))
        await store.run(stop_rebuild(held, 3, "no"))
        (state,) = await store.run(projectors())
        assert state.rebuild is not None
        assert (state.held, state.rebuild.state, state.rebuild.error) == (not online, "stopped", "no")


async def test_a_new_subscription_is_given_what_it_has_no_delivery_of(store: Store) -> None:
    published = await put(store, message(), message("other.thing"), message())
    await projecting(store)
    top = first_id(await store.run(clock()) + timedelta(minutes=1))
    assert await store.run(backfill("totals", FIRST, top)) == (2, None)
    assert await store.run(backfill("totals", FIRST, top)) == (0, None)
    assert {one.message_id for one in await all_deliveries(store)} == {published[0].id, published[2].id}
    # Above what was pruned.
    sql(store, "delete from {hf}delivery")
    oldest = min(published[0].id, published[2].id)
    sql(store, f"update {{hf}}consumer set pruned_to = '{oldest}' where name = 'totals'")
    assert await store.run(backfill("totals", FIRST, top)) == (1, None)
