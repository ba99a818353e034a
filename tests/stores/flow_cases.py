"""Pieces of the tests of flow control: a consumer with settings, its published deliveries, and claims of its lanes."""

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.app.declaration.flow_options import flow_settings
from holdfast.core.change import DeadLetter, Deliver
from holdfast.core.flow import FlowSettings
from holdfast.stores.deliveries.claim import Claimed, Lane, lanes
from holdfast.stores.deliveries.flow import Floors, FlowClaim, FlowScan, claim_flow
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.registry import Declaration, EventSubscription, register
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from tests.support.builders import LEASE, failure, finish, job, put


def settings(**options: Any) -> FlowSettings:
    found = flow_settings(options)
    assert found is not None
    return found


async def declare(store: Store, flow: FlowSettings | None, *patterns: str, name: str = "mail") -> None:
    declared = [Declaration(name, flow=None if flow is None else flow.text)]
    await store.run(register(declared, [EventSubscription(pattern, name) for pattern in patterns], 0))


async def send(store: Store, flow: FlowSettings | None, *keys: str, name: str = "mail", **given: Any) -> None:
    """Publishes a job for each key in order, each in its own transaction and, on SQLite, its own millisecond: deliveries of one
    millisecond are claimed in any order there."""
    fanout = Fanout(flows={} if flow is None else {name: flow})
    for number, key in enumerate(keys):
        if not isinstance(store, PostgresStore):
            await asyncio.sleep(0.001)
        await put(store, job(name, {"k": key, "n": number}, **given), fanout=fanout)


async def lane_of(store: Store, name: str = "mail", *, suspects: bool = False, priority: int | None = None) -> Lane:
    found = await store.run(lanes([name], 0, suspects=suspects))
    (lane,) = [lane for lane in found if priority is None or lane.priority == priority]
    return lane


async def take(
    store: Store,
    size: int = 100,
    *,
    worker: str = "w1",
    name: str = "mail",
    cursor: str | None = None,
    share: int = 1,
    floors: Floors | None = None,
    suspects: bool = False,
    priority: int | None = None,
) -> FlowClaim:
    """Claims from the only lane of a consumer; nothing if it has none."""
    found = await store.run(lanes([name], 0, suspects=suspects))
    found = [lane for lane in found if priority is None or lane.priority == priority]
    if not found:
        return FlowClaim([])
    scan = FlowScan(size, cursor, share)
    return await store.run(claim_flow(found[0], worker, LEASE, scan, floors or Floors(), suspects=suspects))


def numbers(claims: Sequence[Claimed]) -> list[int]:
    """The numbers in the payloads, sorted: the order of `send`."""
    import orjson

    return sorted(orjson.loads(claim.payload)["n"] for claim in claims)


async def deliver(store: Store, *claims: Claimed, worker: str = "w1") -> None:
    for claim in claims:
        assert await finish(store, claim, Deliver(), worker)


async def bury(store: Store, claim: Claimed, worker: str = "w1") -> None:
    """Makes a claim a dead letter."""
    assert await finish(store, claim, DeadLetter(), worker, error=failure())
