"""The JSON of what operators see parses, and says what was there."""

import json
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from holdfast.interfaces.presentation.views import dumps, view
from holdfast.ops.service import Operations
from holdfast.stores.messages.schedule import save_schedules
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.support.builders import message, put, register_consumers, start
from tests.support.failures import dead_letters, one_in_each_state


async def test_everything_an_operator_sees_is_json(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.*"], "nightly": []})
    await store.run(save_schedules([("nightly", "0 7 * * *", "UTC", "last")]))
    await one_in_each_state(store)
    ids = await dead_letters(store, 2)
    await ops.replay(ids[:1], actor="ada", reason="again")
    (published,) = await put(store, message(payload={"deep": [1, {"x": "ünï"}]}, headers={"request_id": "r"}))
    await start(store, "w", ["mail"])
    plan = await ops.plan_replay(Filter())
    seen = [
        await ops.stats(),
        await ops.deliveries(),
        await ops.delivery(ids[1]),
        await ops.export(Filter(dead=True)),
        await ops.failure_groups(),
        await ops.messages(),
        await ops.message(published.id),
        await ops.queues(),
        await ops.consumers(),
        await ops.schedules(),
        await ops.workers(),
        await ops.audit(),
        await ops.doctor(),
        await ops.prunable(timedelta(days=1)),
        plan,
        await plan.execute(actor="ada"),
    ]
    for value in seen:
        assert json.loads(dumps(value)) == json.loads(dumps(value, indent=True)), type(value)


async def test_a_delivery_is_flat_and_its_payload_is_json(store: Store, ops: Operations) -> None:
    (id,) = await dead_letters(store, 1)
    read = json.loads(dumps(await ops.delivery(id)))
    assert UUID(read["id"]) == id
    assert (read["type"], read["consumer"], read["status"], read["alike"]) == ("job.mail", "mail", "failed", 1)
    assert read["message"]["payload"] == {"n": 0}
    assert datetime.fromisoformat(read["created_at"]).utcoffset() == timedelta(0)
    assert read["runs"][0]["trace"].startswith("Traceback")


def test_durations_are_seconds_and_what_has_no_view_is_refused() -> None:
    assert view(timedelta(minutes=1, milliseconds=500)) == 60.5
    with pytest.raises(TypeError, match="object has no JSON view"):
        view(object())
