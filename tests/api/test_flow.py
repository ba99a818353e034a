"""Flow control in the HTTP API: keys, changed limits, paused keys."""

from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from tests.api.conftest import Client
from tests.support.flow import LIMITED, furnish_flow, furnish_keys


async def test_keys_are_listed_page_by_page_with_what_holds_them_up(store: Store, client: Client) -> None:
    head = await furnish_keys(store)
    found, cursor = [], None
    while True:
        params = {"limit": "2", **({"cursor": cursor} if cursor else {})}
        answer = (await client("read").get("/consumers/sync/keys", params=params)).json()
        found += answer["keys"]
        if (cursor := answer["next"]) is None:
            break
    assert [(one["key"], one["hold"]) for one in found] == [
        ("acme", "dead_letter"),
        ("globex", "paused"),
        ("initech", None),
    ]
    assert (found[0]["blocked_by"], found[0]["waiting"], answer["flow"]["order"]) == (str(head), 2, "block")
    wrong = await client("read").get("/consumers/sync/keys", params={"state": "stuck"})
    assert wrong.status_code == 400


async def test_limits_change_and_keys_pause_with_the_token_as_the_actor(
    store: Store, client: Client, ops: Operations
) -> None:
    await furnish_flow(store, "sync", LIMITED, "acme")
    operate = client("operate")
    changed = await operate.post("/consumers/sync/limit", json={"limit": 5, "reason": "faster"})
    assert changed.json() == {"changed": True}
    assert (await ops.keys("sync")).flow.limit == 5
    given = {"consumer": "sync", "key": "acme", "reason": "down"}
    assert (await operate.post("/consumers/pause-key", json=given)).json() == {"changed": True}
    assert (await operate.post("/consumers/pause-key", json=given)).json() == {"changed": False}
    assert (await operate.post("/consumers/resume-key", json=given)).json() == {"changed": True}
    assert (await operate.post("/consumers/sync/limit", json={"reset": True, "reason": "as before"})).json()["changed"]
    assert (await operate.post("/consumers/sync/limit", json={"rate": "1/1s", "reason": "x"})).status_code == 409
    assert (await operate.post("/consumers/sync/limit", json={"limit": "5", "reason": "x"})).status_code == 422
    assert (await client("read").post("/consumers/sync/limit", json={"limit": 1, "reason": "x"})).status_code == 403
    actions = [(one.actor, one.action) for one in await ops.audit(target=("consumer", "sync"))]
    assert actions[::-1] == [("operate", name) for name in ("limit", "pause-key", "resume-key", "limit")]
