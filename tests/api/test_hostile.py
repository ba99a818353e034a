"""What a client must not be able to do: break the API, act beyond its scope, or read a secret from the log."""

import base64
from datetime import timedelta

import httpx2
import orjson
import pytest

from holdfast.interfaces.api.app import api
from holdfast.interfaces.presentation.refusals import Refusals
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import block_consumer
from holdfast.stores.protocol import Store
from tests.api.conftest import Client
from tests.support.apps import log
from tests.support.builders import register_consumers
from tests.support.worker import Log, logged

__all__ = ["log"]


def cursor(*parts: object) -> str:
    return base64.urlsafe_b64encode(orjson.dumps(parts)).decode().rstrip("=")


@pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)
@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("deliveries", cursor("deliveries", 5)),
        ("messages", cursor("messages", {"a": 1})),
        ("plans", cursor("plans", [1])),
        ("idempotency-keys", cursor("keys", ["2026-01-01T00:00:00+00:00", "\0", "k"])),
        ("idempotency-keys", cursor("keys", ["2026-01-01T00:00:00+00:00", 1, "k"])),
    ],
)
async def test_a_forged_cursor_is_refused(client: Client, path: str, given: str) -> None:
    answer = await client("read").get(f"/{path}", params={"cursor": given})
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_cursor")


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/replay", {"ids": ["01a1dfb6-bee8-7b35-83b8-88f5054f5478"], "rerun": True}),
        ("/plans", {"action": "replay", "filter": {}, "rerun": True}),
        ("/idempotency-keys/release", {"scope": "s", "key": "k"}),
        ("/webhooks/w/disable", {}),
        ("/webhooks/w/enable", {}),
    ],
)
async def test_what_takes_an_admin_in_the_console_takes_one_here(
    client: Client, ops: Operations, path: str, body: dict[str, object]
) -> None:
    answer = await client("operate").post(path, json={**body, "reason": "fixed"})
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert [(one.actor, one.action) for one in await ops.audit(limit=1)] == [("operate", "refused")]
    assert (await client("admin").post(path, json={**body, "reason": "fixed"})).status_code != 403


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_read_only_lets_every_token_look_and_none_act(ops: Operations, store: Store) -> None:
    made = await ops.create_token("root", scope="admin", actor="ada")
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(api(ops, read_only=True)),
        base_url="http://holdfast.test/api/v1",
        headers={"authorization": f"Bearer {made.secret}"},
    ) as client:
        assert (await client.get("/stats")).status_code == 200
        answer = await client.post("/queues/mail/pause", json={"reason": "no", "force": True})
        assert answer.status_code == 403
        assert "read-only" in answer.json()["detail"]
    assert await ops.queues() == []


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_a_fault_is_logged_without_the_token_that_met_it(
    ops: Operations, store: Store, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> None:
        raise RuntimeError("a bug")

    made = await ops.create_token("root", scope="admin", actor="ada")
    monkeypatch.setattr(type(ops), "queues", lambda _: broken())
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(api(ops), raise_app_exceptions=False), base_url="http://holdfast.test/api/v1"
    ) as client:
        answer = await client.get("/queues", headers={"authorization": f"Bearer {made.secret}"})
    assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
    line = logged(log, "api request failed")[0]
    assert line["error"] == "a bug"
    # An exception would be drawn with the variables of every frame.
    assert "exc_info" not in line
    assert made.secret not in str(log)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_the_reason_to_unblock_is_kept(client: Client, ops: Operations, store: Store) -> None:
    await register_consumers(store, {"mail": []})
    await store.run(block_consumer("mail", "smtp", timedelta(hours=1), "w"))
    assert (await client("operate").post("/consumers/mail/unblock", json={"reason": "smtp is back"})).is_success
    assert [(one.action, one.reason) for one in await ops.audit(limit=1)] == [("unblock", "smtp is back")]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_strangers_cannot_use_up_the_audit_of_those_who_are_known(ops: Operations, store: Store) -> None:
    refusals = Refusals("api", lambda: store)
    for n in range(70):
        await refusals.record("unauthenticated", "GET", f"/{n}", "no token", None)
    await refusals.record("mallory", "POST", "/replay", "a viewer", None)
    assert [one.actor for one in await ops.audit(limit=100)] == ["mallory"]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_a_password_in_a_reason_is_shown_nowhere(client: Client, ops: Operations, store: Store) -> None:
    body = {"reason": "moved to postgresql://app:hunter2@db/shop"}
    made = await client("operate").post("/plans", json={"action": "replay", "filter": {}, **body})
    answers = [made, await client("operate").post(f"/plans/{made.json()['id']}/start", json=body)]
    answers.append(await client("operate").post("/breakers/bank/trip", json={**body, "force": True}))
    answers += [
        await client("read").get(path) for path in ("/plans", f"/plans/{made.json()['id']}", "/breakers", "/audit")
    ]
    assert all(one.is_success for one in answers)
    assert "hunter2" not in "".join(one.text for one in answers)
