"""How a projector stands: its place, its lag, its last run, and what replays and rebuilds make of its dead letters."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Cancel, Context, Filter, Holdfast, NotFound, RebuildStopped, Refused, RetryPolicy
from holdfast.core.delivery import Status
from holdfast.interfaces.presentation.views import view
from holdfast.ops.resources.projectors import ProjectorState
from tests.projections.ledger import ask, reset, swap_in
from tests.support.worker import all_of, drain, run_records


class Things:
    """A projector that refuses some numbers, in a separate shop."""

    def __init__(self, dsn: str) -> None:
        self.hf = hf = Holdfast(dsn)
        self.bad: set[int] = set()
        self.cancelled: set[int] = set()

        @hf.projector("thing.*", name="counts", reset=reset("counts"), swap=swap_in("counts"), retry=RetryPolicy.none())
        async def counts(ctx: Context, thing: dict[str, Any]) -> None:
            if thing["n"] in self.bad:
                raise ValueError(f"thing {thing['n']} makes no sense")
            if thing["n"] in self.cancelled:
                raise Cancel("not wanted")
            table = "counts_next" if ctx.rebuilding else "counts"
            ask(dsn, f"insert into {table} values ('{thing['n']}', 1)")

    async def publish(self, *numbers: int) -> None:
        await self.hf.publish_many([("thing.made", {"n": n}) for n in numbers], conn=None)

    async def state(self) -> ProjectorState:
        (state,) = await self.hf.ops.projectors()
        return state

    @property
    def rows(self) -> list[int]:
        return sorted(int(row[0]) for row in ask(self.hf.dsn, "select * from counts"))


@pytest.fixture
async def things(dsn: str) -> AsyncIterator[Things]:
    made = Things(dsn)
    if dsn.startswith("sqlite"):
        made.hf.store.migrate()
    for name in ("counts", "counts_next"):
        ask(dsn, f"drop table if exists {name}")
    ask(dsn, "create table counts (customer text primary key, orders bigint not null)")
    yield made
    await made.hf.close()


async def test_a_projector_shows_how_far_it_is_and_what_waits(things: Things) -> None:
    await things.publish(1)
    await drain(things.hf)
    await things.hf.ops.pause_consumer("counts", actor="ada")
    await things.publish(2, 3, 4)
    state = await things.state()
    assert (state.newest - state.position, state.pending, state.failed) == (3, 3, 0)
    assert state.lag >= timedelta(0)
    assert state.paused_at is not None
    assert state.last_run is not None
    assert (state.last_run.outcome, state.rebuild) == ("succeeded", None)
    shown = view(state)
    assert isinstance(shown, dict)
    assert shown["pending"] == 3

    await things.hf.ops.resume_consumer("counts", actor="ada")
    await drain(things.hf)
    state = await things.state()
    assert (state.newest - state.position, state.pending) == (0, 0)


async def test_a_projector_that_was_added_later_has_not_come_far(things: Things) -> None:
    await things.publish(1, 2, 3)

    @things.hf.projector("thing.*", name="late", reset=lambda conn: None)
    async def late(thing: dict[str, Any]) -> None: ...

    async def left() -> int:
        (state,) = [one for one in await things.hf.ops.projectors() if one.name == "late"]
        return state.newest - state.position

    await things.hf._runtime.registration.prepare()
    assert await left() == 3, "though nothing was given to it yet"
    await things.hf.projectors.rebuild("late", actor="ada")
    assert await left() == 0


async def test_replaying_one_dead_letter_updates_the_status(things: Things) -> None:
    things.bad = {2}
    await things.publish(1)
    await drain(things.hf)
    await things.publish(2)
    await drain(things.hf)
    before = await things.state()
    assert before.last_run is not None
    assert (before.failed, before.last_run.outcome) == (1, "failed")
    assert before.last_run.error == "thing 2 makes no sense"

    things.bad = set()
    plan = await things.hf.ops.plan_replay(Filter(consumers=("counts",), dead=True), limit=10)
    await plan.execute(actor="ada", reason="fixed")
    await drain(things.hf)
    after = await things.state()
    assert after.last_run is not None
    assert (after.failed, after.last_run.outcome) == (0, "succeeded")
    assert after.last_run.delivery_id == before.last_run.delivery_id
    assert things.rows == [1, 2]


async def test_a_completed_run_is_recorded_in_the_handlers_own_transaction(hf: Holdfast) -> None:
    await hf.publish("order.changed", {"customer": "c", "cents": 1, "number": 1, "status": "s", "at": 1}, conn=None)
    await drain(hf)
    (run,) = await run_records(hf, "totals")
    assert (run.outcome, run.attempt) == ("succeeded", 1)
    assert run.started_at is not None


async def test_a_rebuild_resolves_dead_letters_and_their_history_says_so(things: Things) -> None:
    things.bad = {2}
    await things.publish(1, 2)
    await drain(things.hf)
    things.bad = set()
    (done,) = await things.hf.projectors.rebuild("counts", actor="ada", reason="fixed")
    assert (done.applied, done.done, done.resolved) == (2, 1, 1)
    assert things.rows == [1, 2]
    (dead,) = [one for one in await all_of(things.hf) if one.failure_history]
    assert dead.status is Status.DELIVERED
    assert dead.failure_history[-1].reason == "resolved by a rebuild of counts: fixed"
    assert (await things.state()).failed == 0
    entries = await things.hf.ops.audit(target=("projector", "counts"))
    assert [(entry.action, entry.actor) for entry in entries] == [("rebuilt", "ada"), ("rebuild", "ada")]
    await drain(things.hf)
    assert things.rows == [1, 2]


async def test_a_rebuild_stops_at_what_it_cannot_apply_and_can_leave_it_out(things: Things) -> None:
    await things.publish(1, 2, 3)
    await drain(things.hf)
    things.bad = {2}
    with pytest.raises(RebuildStopped, match="thing 2 makes no sense") as stopped:
        await things.hf.projectors.rebuild("counts", actor="ada")
    assert things.rows == [1, 2, 3]
    state = await things.state()
    assert state.rebuild is not None
    assert (state.rebuild.state, state.rebuild.applied, state.held) == ("stopped", 1, False)
    assert str(stopped.value.message_id) in str(state.rebuild.error)

    (done,) = await things.hf.projectors.rebuild("counts", actor="ada", skip=[stopped.value.message_id])
    assert (done.applied, done.skipped) == (2, 1)
    assert things.rows == [1, 3]


async def test_a_dead_letter_that_was_left_out_of_a_rebuild_stays_one(things: Things) -> None:
    things.bad = {2, 3}
    await things.publish(1, 2, 3)
    await drain(things.hf)
    things.bad = {2}
    (left_out,) = [one for one in await all_of(things.hf) if one.last_error == "thing 2 makes no sense"]
    (done,) = await things.hf.projectors.rebuild("counts", actor="ada", skip=[left_out.message_id])
    assert (done.applied, done.skipped, done.resolved) == (2, 1, 1)
    assert (await things.state()).failed == 1

    things.bad = set()
    await things.hf.ops.replay([left_out.id], actor="ada")
    await drain(things.hf)
    assert things.rows == [1, 2, 3]


async def test_what_was_discarded_or_called_off_stays_out_of_a_rebuild(things: Things) -> None:
    things.bad, things.cancelled = {2}, {3}
    await things.publish(1, 2, 3)
    await drain(things.hf)
    plan = await things.hf.ops.plan_discard(Filter(consumers=("counts",), dead=True), limit=10)
    await plan.execute(actor="ada", reason="never")
    (done,) = await things.hf.projectors.rebuild("counts", actor="ada")
    assert (done.applied, done.skipped) == (1, 2)
    assert things.rows == [1]


async def test_only_a_projector_that_says_how_it_is_emptied_is_rebuilt(things: Things) -> None:
    hf = things.hf

    @hf.projector("thing.*", name="plain")
    async def plain(thing: dict[str, Any]) -> None: ...

    with pytest.raises(Refused, match="without reset="):
        await hf.projectors.rebuild("plain", actor="ada")
    with pytest.raises(NotFound, match="counts, plain"):
        await hf.projectors.rebuild("unknown", actor="ada")
    with pytest.raises(Refused, match="not interrupted"):
        await hf.projectors.rebuild("counts", actor="ada", resume=True)
