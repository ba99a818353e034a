"""The audit: one entry for each plan, every step on request, and filters."""

from datetime import timedelta
from uuid import UUID

import pytest

from holdfast.core.errors import ConfigurationError
from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.support.builders import register_consumers
from tests.support.failures import dead_letters

SECOND = timedelta(seconds=1)


async def replayed(store: Store, ops: Operations, count: int) -> UUID:
    """A plan that ada saved and bob started."""
    await dead_letters(store, count, consumer="export")
    plan = await ops.plan_replay(Filter(), actor="ada", reason="look")
    await ops.start_plan(plan.id, actor="bob", reason="fixed in 42")
    await ops.advance_plans(runner="r")
    return plan.id


async def test_a_plan_is_one_entry_with_how_far_it_is(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": []}, queue="mail")
    await ops.pause_queue("mail", actor="ada")
    id = await replayed(store, ops, 250)
    newest, oldest = await ops.audit()
    assert (newest.kind, newest.target, newest.actor, newest.reason) == ("plan", str(id), "bob", "fixed in 42")
    assert newest.plan is not None
    assert (newest.plan.action, newest.plan.state, newest.plan.done, newest.plan.total) == ("replay", "done", 250, 250)
    assert (oldest.kind, oldest.target, oldest.plan) == ("queue", "mail", None)
    assert await ops.audit(limit=1, before=newest.id) == [oldest]


async def test_every_step_of_a_plan_and_of_a_delivery_is_listed_on_request(store: Store, ops: Operations) -> None:
    id = await replayed(store, ops, 150)
    steps = await ops.audit(target=("plan", str(id)))
    assert [one.action for one in steps] == ["finish", "replay", "replay", "start", "save"]
    (first, *_) = await ops.plan_items(id)
    (act,) = await ops.audit(target=("delivery", str(first.id)))
    assert (act.action, act.actor, act.plan_id) == ("replay", "bob", id)


async def test_an_action_on_many_ids_is_one_entry_too(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 150)
    await ops.discard(ids, actor="ada", reason="gone")
    (entry,) = await ops.audit()
    assert (entry.action, entry.kind, entry.reason) == ("finish", "plan", "gone")
    assert entry.plan is not None
    assert (entry.plan.action, entry.plan.done, entry.plan.state, entry.plan.total) == ("discard", 150, "done", 150)


async def test_entries_are_found_by_actor_action_kind_and_time(store: Store, ops: Operations) -> None:
    """What a plan's newest entry says is not all: ada saved it, bob started it."""
    await register_consumers(store, {"mail": []}, queue="mail")
    await ops.pause_queue("mail", actor="ada")
    id = await replayed(store, ops, 3)
    now = await ops.now()

    async def found(**wanted: object) -> list[tuple[str, str]]:
        return [(one.action, one.target) for one in await ops.audit(**wanted)]  # type: ignore[arg-type]

    assert await found(actor="ada") == [("save", str(id)), ("pause", "mail")]
    assert await found(actor="bob") == [("finish", str(id))]
    assert await found(action="start") == [("start", str(id))]
    assert await found(actor="bob", action="pause") == []
    assert await found(kind="queue") == [("pause", "mail")]
    assert await found(since=now + SECOND) == []
    assert await found(until=now - timedelta(hours=1)) == []
    assert len(await found(since=now - timedelta(hours=1), until=now + SECOND)) == 2
    assert await found(actor="ada", target=("plan", str(id))) == [("save", str(id))]
    with pytest.raises(ConfigurationError):
        await ops.audit(kind="queue", target=("plan", str(id)))
