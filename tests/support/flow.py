"""Consumers with flow control, with keys in the states that operators meet."""

from datetime import timedelta
from uuid import UUID

from holdfast.core.change import DeadLetter
from holdfast.core.flow import FlowSettings, key_rule
from holdfast.stores.admin.flow import pause_key
from holdfast.stores.deliveries.claim import Claimed, Lane
from holdfast.stores.messages.registry import Declaration, EventSubscription, register
from holdfast.stores.protocol import Store
from tests.support.builders import claim_lanes, failure, finish, message, put, sql

BY_TENANT = key_rule("by", "tenant")
LIMITED = FlowSettings(key=BY_TENANT, limit=2, limit_by_key=True)
ORDERED = FlowSettings(key=BY_TENANT, order="block")
RATED = FlowSettings(key=BY_TENANT, rate_count=2, rate_window=timedelta(hours=1), rate_by_key=True)


async def furnish_flow(store: Store, name: str, flow: FlowSettings, *tenants: str) -> None:
    """A consumer of `NAME.placed` with this flow control, and one message for each of these tenants."""
    await store.run(register([Declaration(name, flow=flow.text)], [EventSubscription(f"{name}.placed", name)], 0))
    await put(store, *(message(f"{name}.placed", {"tenant": tenant}) for tenant in tenants))
    # Due in the order of their publish, so that a claim takes the oldest.
    # Positions count on through all tests of a server, so the first one of this test is subtracted.
    place = (
        "(select m.position - (select min(f.position) from {hf}message f) from {hf}message m where m.id = message_id)"
    )
    at = f"- 10000 + {place}" if store.dialect.name == "sqlite" else f"- interval '10 s' + {place} * interval '1 ms'"
    sql(store, f"update {{hf}}delivery set run_at = run_at {at} where consumer = '{name}'")


async def claim_next(store: Store, name: str, limit: int = 1) -> list[Claimed]:
    """Claims the oldest deliveries without regard to limits."""
    claimed = await claim_lanes(store, [Lane("default", name, 0, 1)], limit=limit)
    return sorted(claimed, key=lambda one: one.run_at)


async def furnish_keys(store: Store) -> UUID:
    """The ordered consumer `sync`: a dead head holds up acme, globex is paused, initech waits. Returns the dead head."""
    await furnish_flow(store, "sync", ORDERED, "acme", "acme", "acme", "globex", "initech")
    (head,) = await claim_next(store, "sync")
    assert await finish(store, head, DeadLetter(), error=failure("no such account"))
    await store.run(pause_key("sync", "globex", "ada", "their server is down"))
    return head.id
