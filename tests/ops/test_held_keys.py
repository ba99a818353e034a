"""What flow control holds up, as `doctor`, metrics and the page of a delivery tell it."""

from datetime import timedelta

from holdfast.core.delivery import Status
from holdfast.core.flow import FlowSettings
from holdfast.interfaces.cli.deliveries.delivery_report import lines
from holdfast.ops.doctor.checks import Finding
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import discard
from holdfast.stores.messages.registry import Declaration, register
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.support.builders import age, sql
from tests.support.flow import LIMITED, ORDERED, claim_next, furnish_flow, furnish_keys

HOUR = timedelta(hours=1)


async def finding(ops: Operations, check: str) -> Finding | None:
    return next((one for one in await ops.doctor() if one.check == check), None)


async def samples(ops: Operations, name: str) -> dict[tuple[str, ...], float]:
    (family,) = [one for one in await ops.metrics() if one.name == name]
    return {tuple(one.labels.values()): one.value for one in family.samples if isinstance(one.value, int | float)}


async def test_doctor_names_a_blocked_key_what_waits_behind_it_and_the_next_command(
    store: Store, ops: Operations
) -> None:
    head = await furnish_keys(store)
    age(store, HOUR, "delivery")
    found = await finding(ops, "blocked keys")
    assert found is not None
    assert found.message == "key acme of sync blocked by dead letters, with 2 deliveries waiting; blocked for 1h"
    assert found.remedy is not None
    assert (
        f"`holdfast dlq show {head}`, then `holdfast replay --id {head}` or `holdfast dlq discard {head}`"
        in found.remedy
    )
    paused = await finding(ops, "paused keys")
    assert paused is not None
    assert paused.message == "key globex of sync paused, with 1 delivery waiting"
    assert paused.remedy == "resume with `holdfast consumers resume-key sync globex`"
    await store.run(discard([head], "ada", None))
    assert await finding(ops, "blocked keys") is None


async def test_doctor_names_a_limit_that_holds_work_up_for_long(store: Store, ops: Operations) -> None:
    await furnish_flow(store, "sync", LIMITED, "acme", "acme", "acme", "globex")
    await claim_next(store, "sync", 2)
    assert await finding(ops, "limits") is None, "not yet old"
    sql(store, "update {hf}delivery set lease_until = null where status = 'pending'")
    age(store, HOUR, "delivery")
    found = await finding(ops, "limits")
    assert found is not None
    assert found.message == "limit of 2 reached for key acme of sync: 1 delivery due, the oldest for 1h"
    assert found.remedy is not None
    assert "`holdfast consumers limit sync --limit 4`" in found.remedy


async def test_doctor_names_a_limit_without_a_key(store: Store, ops: Operations) -> None:
    await furnish_flow(store, "sync", FlowSettings(limit=1), "a", "b")
    await claim_next(store, "sync")
    sql(store, "update {hf}delivery set flow_key = '' where status = 'in_flight'")
    age(store, HOUR, "delivery")
    found = await finding(ops, "limits")
    assert found is not None
    assert found.message == "limit of 1 reached by sync: 1 delivery due, the oldest for 1h"


async def test_metrics_count_what_waits_by_reason_and_never_by_key(store: Store, ops: Operations) -> None:
    await furnish_keys(store)
    await furnish_flow(store, "mail", LIMITED, "acme", "acme", "acme", "globex")
    await claim_next(store, "mail", 2)
    assert await samples(ops, "holdfast_flow_waiting") == {
        ("mail", "limit"): 1,
        ("mail", "rate"): 0,
        ("mail", "paused"): 0,
        ("mail", "dead_letter"): 0,
        ("sync", "limit"): 0,
        ("sync", "rate"): 0,
        ("sync", "paused"): 1,
        ("sync", "dead_letter"): 2,
    }
    assert await samples(ops, "holdfast_flow_blocked_keys") == {("sync",): 1}


async def test_a_dead_head_says_what_it_holds_up_and_a_waiting_delivery_why_it_waits(
    store: Store, ops: Operations
) -> None:
    head = await furnish_keys(store)
    detail = await ops.delivery(head)
    assert (detail.flow_key, detail.holds_up) == ("acme", 2)
    text = "\n".join("".join(part for part, _ in line) for line in lines(detail))
    assert "holds up   2 deliveries of its key; replay or discard it" in text
    waiting = [one.delivery.id for one in await ops.deliveries(Filter(statuses=(Status.PENDING,)))]
    obstacles = {detail.flow_key: detail.obstacles for detail in [await ops.delivery(id) for id in waiting]}
    assert f"key acme: blocked by dead letter {head}; replay or discard it" in obstacles["acme"]
    assert "key globex: the key is paused" in obstacles["globex"]
    assert obstacles["initech"] == ("no live worker serves sync",)
    await store.run(discard([head], "ada", None))
    assert (await ops.delivery(head)).holds_up is None


async def test_a_waiting_delivery_names_the_head_of_its_key_and_a_reached_limit(store: Store, ops: Operations) -> None:
    await furnish_flow(store, "sync", ORDERED, "acme", "acme")
    ids = [one.delivery.id for one in await ops.deliveries(Filter(statuses=(Status.PENDING,)))]
    found = [(await ops.delivery(id)).obstacles for id in ids]
    assert sum("earlier deliveries of key acme come first" in one for one in found) == 1
    await claim_next(store, "sync")
    limited = FlowSettings(limit=1)
    await store.run(register([Declaration("sync", flow=limited.text)], [], 0))
    (pending,) = await ops.deliveries(Filter(statuses=(Status.PENDING,)))
    assert "consumer sync has reached its limit of 1" in (await ops.delivery(pending.delivery.id)).obstacles
