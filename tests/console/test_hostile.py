"""What stands in an address or a form can be anything; none of it breaks a page."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from holdfast.core.errors import StoreUnavailable
from holdfast.interfaces.console.app import Console
from holdfast.interfaces.server.standalone import standalone
from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from tests.console.conftest import ClientAs, post

LONG = "9" * 5000

ADDRESSES = [
    *(f"/audit?before={number}" for number in ("9" * 30, LONG, "99999999999")),
    "/audit?target=queue:%00",
    *(f"/dead?{name}=%00" for name in ("consumer", "group", "queue", "type", "error_type", "since")),
    "/dead?since=9999999999d",
    "/dead?since=0001-01-01T00:00:00%2B14:00",
    "/dead?until=9999-12-31T23:59:59-14:00",
    "/messages?key=%00",
    "/requests?id=%00",
    "/find?q=%00",
    "/keys?scope=%00",
    "/keys?after_at=2026-01-01T00:00:00Z&after_key=%00",
    "/keys?after_at=2026-01-01T00:00:00&after_key=a",
    "/webhooks?tenant=%00",
    "/groups?consumer=%00",
]
FORMS = [
    ("/plans", {"action": "replay", "limit": LONG}),
    ("/plans", {"action": "replay", "consumer": "\0"}),
    ("/queues/pause", {"name": "\0"}),
    ("/breakers/trip", {"name": "bank", "duration": f"{LONG[:400]}d"}),
    ("/keys/release", {"name": "\0", "scope": "\0"}),
    ("/webhooks/disable", {"name": "\0", "reason": "no"}),
]


@pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)
async def test_no_address_and_no_form_breaks_a_page(shop: Store, client_as: ClientAs) -> None:
    async with client_as("admin") as client:
        plan = (await post(client, "/plans", action="replay")).headers["location"]
        addresses = [f"/ops{one}" for one in ADDRESSES] + [f"{plan}?after={one}" for one in ("99999999999", LONG)]
        found = {one[:60]: (await client.get(one)).status_code for one in addresses}
        forms = [*FORMS, ("/plans/start", {"id": plan.rpartition("/")[2], "reason": "no", "generation": LONG})]
        found |= {f"{path} {n}": (await post(client, path, **form)).status_code for n, (path, form) in enumerate(forms)}
    assert {one: status for one, status in found.items() if status >= 500} == {}
    assert all(status == 400 for one, status in found.items() if "%00" in one)


@asynccontextmanager
async def serving(ops: Operations, **more: object) -> AsyncIterator[httpx2.AsyncClient]:
    app = standalone(ops, **{"host": "127.0.0.1", "auth": "none", "actor": "ada", **more})  # type: ignore[arg-type]
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as client:
        yield client


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_read_only_applies_to_the_api_with_any_token(ops: Operations, shop: Store) -> None:
    made = await ops.create_token("root", scope="admin", actor="ada")
    bearer = {"authorization": f"Bearer {made.secret}"}
    for auth in ("token", "none"):
        async with serving(ops, auth=auth, read_only=True) as client:
            assert (await client.get("/api/v1/queues", headers=bearer)).status_code == 200
            answer = await client.post("/api/v1/queues/payments/pause", json={"reason": "no"}, headers=bearer)
            assert answer.status_code == 403


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("read_only", [True, False])
async def test_plans_run_after_any_error_unless_the_console_is_read_only(
    ops: Operations, monkeypatch: pytest.MonkeyPatch, read_only: bool
) -> None:
    asked = asyncio.Event()

    async def broken(**_: object) -> int:
        asked.set()
        raise ZeroDivisionError("not an error of ours")

    monkeypatch.setattr(type(ops), "advance_plans", lambda _, **given: broken(**given))
    served = Console(ops, lambda _: ("ada", "admin"), read_only)
    async with served.lifespan(None):
        for _ in range(20):
            await asyncio.sleep(0)
        assert asked.is_set() is not read_only
        running = [task for task in asyncio.all_tasks() if "_run_plans_forever" in repr(task)]
        assert len(running) == (not read_only)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
async def test_metrics_are_for_this_machines_names_and_say_that_the_store_is_out(
    ops: Operations, shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def out() -> None:
        raise StoreUnavailable("shop", "postgresql://app:hunter2@db/shop refuses")

    async with serving(ops) as client:
        assert (await client.get("/metrics", headers={"host": "evil.test"})).status_code == 421
        monkeypatch.setattr(type(ops), "metrics", lambda _: out())
        answer = await client.get("/metrics")
    assert answer.status_code == 503
    assert "hunter2" not in answer.text
