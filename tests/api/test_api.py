"""The HTTP API: what it shows, what it does, whom it lets."""

import asyncio
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.interfaces.api.app import ENDPOINTS, api
from holdfast.interfaces.api.auth import is_loopback
from holdfast.interfaces.api.endpoint import Caller
from holdfast.ops.plans import PlanRunner
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import audit
from holdfast.stores.admin.token import Scope
from holdfast.stores.groups.group import NewGroup, NewMember, start_group
from holdfast.stores.integrations.idempotency import Reservation, reserve
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.schedule import save_schedules
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries import delivery_counts
from holdfast.stores.queries.query import Filter
from tests.api.conftest import Client
from tests.support.builders import fresh_id, job, put, sql
from tests.support.failures import dead_letters, one_in_each_state

WHY = {"reason": "fixed in 42"}
# What is refused before the store is asked is refused alike on each.
ANY_STORE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
BOTH = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)


async def get(client: httpx2.AsyncClient, path: str, **query: Any) -> Any:
    answer = await client.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def audited(store: Store, kind: str) -> list[tuple[str, str, str, str | None]]:
    entries = await store.run(audit(1000))
    return [(one.actor, one.action, one.target, one.reason) for one in entries[::-1] if one.kind == kind]


@BOTH
async def test_the_pages_of_a_list_contain_every_item_once(store: Store, client: Client) -> None:
    ids = await dead_letters(store, 25)
    found, cursor = [], None
    for size in (10, 10, 5):
        page = await get(client("read"), "/dead-letters", limit=10, **({"cursor": cursor} if cursor else {}))
        assert len(page["items"]) == size
        assert page.keys() == {"items", "next"}, "no total unless asked"
        found += [one["id"] for one in page["items"]]
        cursor = page["next"]
    assert cursor is None
    assert found == [str(id) for id in reversed(ids)]


@BOTH
async def test_counts_are_bounded_unless_exact_ones_are_requested(
    store: Store, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery_counts, "_FEW", 2)
    monkeypatch.setattr(delivery_counts, "BUDGET", 2)
    await dead_letters(store, 3)
    bounded = await get(client("read"), "/stats")
    exact = await get(client("read"), "/stats", exact="true")
    assert (bounded["failed"], bounded["at_least"], bounded["loads"][0]["at_least"]) == (2, ["failed"], ["failed"])
    assert (exact["failed"], exact["at_least"]) == (3, [])


@BOTH
async def test_every_list_and_item_can_be_read(store: Store, client: Client, ops: Operations) -> None:
    ids = await one_in_each_state(store)
    reader = client("admin")
    plan = await ops.plan_replay(Filter(), actor="ada")
    await store.run(save_schedules([("nightly", "0 7 * * *", "UTC", "last")]))
    members = [NewMember(job(), 0, 0)]
    group = await store.run(start_group(NewGroup(fresh_id(), "a job", None, members), Fanout(), own=True))
    delivery = await get(reader, f"/deliveries/{ids['failed']}")
    for endpoint in ENDPOINTS:
        # Items that need more: see the tests of flow control and of workflows.
        if endpoint.method != "GET" or endpoint.path in ("/consumers/{name}/keys", "/workflow-runs/{id}"):
            continue
        known = {
            "/messages/{id}": delivery["message_id"],
            "/deliveries/{id}": ids["failed"],
            "/job-groups/{id}": group.id,
        }
        item = known.get(endpoint.path, plan.id)
        await get(
            reader,
            endpoint.path.replace("{id}", str(item)).replace("{name}", "nightly"),
            **({"q": "boom"} if endpoint.path == "/search" else {}),
        )
    assert delivery["message"]["payload"] == {"state": "failed"}
    assert [run["outcome"] for run in delivery["runs"]] == ["failed"]
    assert delivery["alike"] == 1
    by_status = await get(reader, "/deliveries", status=["failed", "delivered"], discarded="false")
    assert {one["id"] for one in by_status["items"]} == {str(ids["failed"]), str(ids["delivered"])}


@ANY_STORE
async def test_a_key_is_listed_without_the_token_of_its_request(store: Store, client: Client) -> None:
    await store.run(
        reserve(Reservation("acme", "k-1", "hash", "secret-owner"), timedelta(minutes=5), timedelta(days=1))
    )
    (one,) = (await get(client("read"), "/idempotency-keys"))["items"]
    assert (one["scope"], one["key"], one["status"]) == ("acme", "k-1", "started")
    assert "owner" not in one


@BOTH
async def test_the_pending_deliveries_of_a_queue_are_counted_up_to_a_bound(store: Store, client: Client) -> None:
    await put(store, *[job("mail") for _ in range(3)])
    assert (await get(client("read"), "/queues/unknown/pending"))["pending"] == 0, (
        "an autoscaler asks before a worker runs"
    )
    counted = await get(client("read"), "/queues/default/pending")
    assert counted == {"queue": "default", "consumer": None, "pending": 3, "at_least": []}
    bounded = await get(client("read"), "/queues/default/pending", consumer="mail", most="2")
    assert (bounded["pending"], bounded["at_least"]) == (2, ["pending"])


@ANY_STORE
@pytest.mark.parametrize(
    ("path", "query", "status", "code", "named"),
    [
        ("/deliveries", {"statsu": "failed"}, 400, "invalid_parameters", "statsu"),
        ("/deliveries", {"limit": "1001"}, 400, "invalid_parameters", "limit"),
        ("/deliveries", {"limit": "ten"}, 400, "invalid_parameters", "integer"),
        ("/deliveries", {"limit": ["1", "2"]}, 400, "invalid_parameters", "must not be repeated"),
        ("/deliveries", {"since": "yesterday"}, 400, "invalid_parameters", "since"),
        (
            "/deliveries",
            {"since": "2026-11-15T09:00:00Z", "until": "2026-11-15T09:00:00Z"},
            422,
            "configuration_error",
            "`since` must be",
        ),
        ("/deliveries", {"discarded": "yes"}, 400, "invalid_parameters", "true or false"),
        ("/deliveries", {"cursor": "xyz"}, 400, "invalid_cursor", "start again"),
        ("/audit", {"cursor": "WyJkZWxpdmVyaWVzIiwgMV0"}, 400, "invalid_cursor", "start again"),
        ("/audit", {"target": "mail"}, 400, "invalid_parameters", "pass both"),
        ("/search", {"q": "x"}, 400, "invalid_parameters", "q"),
        ("/search", {"q": "boom", "cursor": "xyz"}, 400, "invalid_cursor", "start again"),
        ("/deliveries", {"type": "a..b"}, 422, "invalid_name", "empty part"),
        ("/deliveries", {"queue": "\x00"}, 400, "invalid_parameters", "NUL"),
        ("/queues/mail/pending", {"most": "0"}, 400, "invalid_parameters", "most"),
        ("/queues/a b/pending", {}, 422, "invalid_name", "queue name"),
        ("/deliveries/no-id", {}, 404, "not_found", "UUID"),
        ("/nowhere", {}, 404, "no_such_path", "openapi.json"),
        ("/deliveries", {"queue": "mial"}, 404, "not_found", "no queue 'mial'"),
        ("/dead-letters", {"consumer": "biling"}, 404, "not_found", "no consumer 'biling'"),
        ("/failure-groups", {"consumer": "biling"}, 404, "not_found", "no consumer 'biling'"),
        ("/audit", {"action": "discrad"}, 404, "not_found", "did you mean 'discard'?"),
        ("/audit", {"kind": "queue", "target": "mial"}, 404, "not_found", "no queue 'mial'"),
    ],
)
async def test_an_invalid_parameter_is_named(
    client: Client, path: str, query: dict[str, Any], status: int, code: str, named: str
) -> None:
    answer = await client("read").get(path, params=query)
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    problem = answer.json()
    assert (problem["status"], problem["code"], problem["type"]) == (status, code, f"urn:holdfast:{code}")
    assert named in problem["detail"]


@ANY_STORE
@pytest.mark.parametrize(
    ("body", "status", "code", "named"),
    [
        ({"ids": []}, 422, "invalid_body", "reason"),
        ({"ids": ["x"], **WHY}, 422, "invalid_body", "ids.0"),
        ({"ids": [], "reson": "slip", **WHY}, 422, "invalid_body", "reson"),
        ("{", 400, "invalid_json", "not valid JSON"),
        ('{"ids": ["' + "0" * 2_000_000 + '"]}', 413, "too_large", "bytes"),
    ],
)
async def test_an_invalid_body_is_rejected_with_its_fields(
    client: Client, body: object, status: int, code: str, named: str
) -> None:
    given = (
        {"content": body, "headers": {"content-type": "application/json"}} if isinstance(body, str) else {"json": body}
    )
    answer = await client("operate").post("/replay", **given)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert named in answer.json()["detail"]
    form = await client("operate").post("/replay", data={"reason": "a form"})
    assert form.status_code == 415


async def test_only_an_admin_starts_a_plan_that_reruns(client: Client, store: Store) -> None:
    (id,) = await dead_letters(store, 1)
    body = {"action": "replay", "filter": {"ids": [str(id)]}, "limit": 1, "rerun": True, **WHY}
    plan = (await client("admin").post("/plans", json=body)).json()["id"]
    refused = await client("operate").post(f"/plans/{plan}/start", json=WHY)
    assert (refused.status_code, "reruns deliveries" in refused.json()["detail"]) == (403, True)
    assert (await client("admin").post(f"/plans/{plan}/start", json=WHY)).status_code == 200


@ANY_STORE
async def test_a_token_allows_what_its_scope_covers_and_refusals_are_audited(
    store: Store, client: Client, ops: Operations
) -> None:
    order = ["read", "operate", "admin"]
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace("{id}", str(fresh_id())).replace("{name}", "unknown")
        for scope in order[: order.index(endpoint.scope)]:
            answer = await client(scope).request(endpoint.method, path, json=WHY)
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (endpoint.path, scope)
    refused = await audited(store, "api")
    assert ("read", "refused", "/api/v1/replay", "requires the scope operate, but read has read") in refused
    assert {actor for actor, *_ in refused} == {"read", "operate"}


@BOTH
async def test_a_request_without_a_valid_token_is_rejected(store: Store, ops: Operations) -> None:
    app = api(ops)
    gone = await ops.create_token("other", actor="root")
    late = await ops.create_token("later", expires="1h", actor="root")
    await ops.revoke_token("other", actor="root", reason="lost")
    sql(store, f"update {{hf}}token set expires_at = {_past(store)} where name = 'later'")
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://holdfast.test") as anybody:
        for given in ({}, *({"authorization": f"Bearer {t}"} for t in ("", "hf_no", gone.secret, late.secret))):
            answer = await anybody.get("/api/v1/stats", headers=given)
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"].startswith("Bearer")
        assert (await anybody.get("/api/v1/openapi.json")).status_code == 200
    # Strangers are not audited: they could fill it.
    whom = Counter(actor for actor, *_ in await audited(store, "api"))
    assert whom == {"other": 1, "later": 1}


def _past(store: Store) -> str:
    return "1" if store.dialect.name == "sqlite" else "now() - interval '1 hour'"


@BOTH
async def test_a_token_is_stored_as_a_hash_and_its_use_noted_once_a_minute(store: Store, ops: Operations) -> None:
    made = await ops.create_token("ci", scope="operate", actor="ada")
    (kept,) = sql(store, "select id, name, hash, prefix from {hf}token")
    assert made.secret not in str(kept)
    assert made.secret not in repr(made)
    assert kept[3] == made.secret[:8]
    assert await ops.recognise_token(made.secret + "x") is None
    assert (await ops.recognise_token(made.secret)).name == "ci"  # type: ignore[union-attr]
    (first,) = await ops.tokens()
    await asyncio.sleep(0.01)
    await ops.recognise_token(made.secret)
    assert await ops.tokens() == [first]
    assert first.last_used_at is not None
    assert [(actor, action) for actor, action, *_ in await audited(store, "token")] == [("ada", "create")]


@BOTH
async def test_a_repeated_key_returns_the_first_response_and_acts_once(store: Store, client: Client) -> None:
    ids = [str(id) for id in await dead_letters(store, 2)]
    body = {"ids": ids, **WHY}
    key = {"idempotency-key": "replay-1"}
    first, second = [await client("operate").post("/replay", json=body, headers=key) for _ in range(2)]
    assert first.json() == second.json()
    assert first.json()["done"] == ids
    assert second.headers["idempotent-replayed"] == "true"
    other = await client("operate").post("/replay", json={"ids": ids[:1], **WHY}, headers=key)
    assert other.status_code == 409
    again = await client("operate").post("/replay", json=body)
    assert [one["why"] for one in again.json()["skipped"]] == ["pending", "pending"]
    replays = [entry for entry in await audited(store, "delivery") if entry[1] == "replay"]
    assert replays == [("operate", "replay", id, "fixed in 42") for id in ids]
    theirs = await client("admin").post("/discard", json=body, headers=key)
    assert theirs.status_code == 200, "a key belongs to one token"


@BOTH
async def test_a_plan_is_previewed_started_and_watched(store: Store, client: Client) -> None:
    await dead_letters(store, 120)
    operator = client("operate")
    made = await operator.post("/plans", json={"action": "replay", "filter": {}, "limit": 1000, **WHY})
    assert made.status_code == 201, made.text
    plan = made.json()
    assert (plan["state"], plan["total"], plan["left"]) == ("ready", 120, 120)
    assert plan["preview"]["consumers"] == {"mail": 120}
    at = f"/plans/{plan['id']}"
    started = await asyncio.gather(*(operator.post(f"{at}/start", json=WHY) for _ in range(2)))
    assert sorted(one.status_code for one in started) == [200, 409]
    assert {one.json().get("code") for one in started} == {None, "refused"}
    paused = await operator.post(f"{at}/pause", json=WHY)
    assert paused.json()["state"] == "paused"
    await operator.post(f"{at}/resume", json=WHY)
    await PlanRunner(store).perform("w1")
    done = await get(operator, at)
    assert (done["state"], done["done"], done["skipped"], done["started_by"]) == ("done", 120, {}, "operate")
    items = await get(operator, f"{at}/items", limit=100)
    rest = await get(operator, f"{at}/items", limit=100, cursor=items["next"])
    assert len(items["items"]) + len(rest["items"]) == 120
    assert (await get(operator, f"{at}/items", skipped="true"))["items"] == []
    assert [one["id"] for one in (await get(operator, "/plans", state="done"))["items"]] == [plan["id"]]


@BOTH
async def test_the_audit_log_names_the_token_as_the_actor(store: Store, client: Client) -> None:
    await dead_letters(store, 1)
    operator = client("operate")
    for path in ("/queues/default/pause", "/queues/default/resume", "/consumers/mail/pause", "/consumers/mail/resume"):
        answer = await operator.post(path, json=WHY)
        assert (answer.status_code, answer.json()) == (200, {"changed": True})
    assert (await operator.post("/consumers/mail/resume", json=WHY)).json() == {"changed": False}
    assert (await operator.post("/consumers/mial/pause", json=WHY)).status_code == 404
    await operator.post("/breakers/payments.eu/trip", json={"seconds": 60, "force": True, **WHY})
    assert [one["state"] for one in (await get(operator, "/breakers"))["items"]] == ["open"]
    named = {"x-request-id": "r-77"}
    assert (await operator.post("/queues/default/pause", json=WHY, headers=named)).headers["x-request-id"] == "r-77"
    trail = await get(operator, "/requests/r-77")
    assert [(one["action"], one["target"]) for one in trail["audit"]] == [("pause", "default")]
    await operator.post("/queues/default/resume", json=WHY)
    assert (await audited(store, "queue"))[:2] == [
        ("operate", action, "default", "fixed in 42") for action in ("pause", "resume")
    ]


@ANY_STORE
async def test_without_tokens_only_requests_from_this_machine_are_answered(ops: Operations) -> None:
    app = api(ops, anonymous=Caller("local", Scope.READ))
    for host, origin, status in [
        ("localhost", None, 200),
        ("127.0.0.1:8000", "http://127.0.0.1:8000", 200),
        ("evil.test", None, 421),
        ("localhost", "https://evil.test", 421),
    ]:
        headers = {"host": host} | ({"origin": origin} if origin else {})
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as here:
            assert (await here.get("/api/v1/queues", headers=headers)).status_code == status
    assert [host for host in ("127.0.0.1", "::1", "[::1]", "LOCALHOST", "127.8.9.1") if not is_loopback(host)] == []
    assert [host for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.test", "") if is_loopback(host)] == []  # noqa: S104


@ANY_STORE
async def test_a_standalone_api_executes_started_plans(store: Store, ops: Operations) -> None:
    await dead_letters(store, 3)
    plan = await ops.plan_replay(Filter(), actor="ada")
    await ops.start_plan(plan.id, actor="ada")
    app = api(ops)
    async with app.router.lifespan_context(app), asyncio.timeout(60):
        while (found := await ops.plan(plan.id)).left:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert (found.state, found.done) == ("done", 3)


@ANY_STORE
async def test_an_unknown_path_or_method_is_a_problem_also_when_mounted(ops: Operations, client: Client) -> None:
    answer = await client("read").delete("/plans")
    assert (answer.status_code, answer.json()["code"]) == (405, "not_allowed")
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert (await client("read").head("/plans")).status_code == 200
    mounted = Starlette(routes=[Mount("/holdfast", api(ops))])
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(mounted), base_url="http://holdfast.test") as anybody:
        document = (await anybody.get("/holdfast/api/v1/openapi.json")).json()
        assert document["servers"] == [{"url": "/holdfast"}]
        assert (await anybody.get("/holdfast/api/v1/stats")).status_code == 401


@BOTH
async def test_health_reports_liveness_and_readiness(store: Store, ops: Operations) -> None:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(api(ops)), base_url="http://holdfast.test") as probe:
        assert (await probe.get("/healthz")).json() == {"status": "ok"}
        assert (await probe.get("/readyz")).json() == {"status": "ready"}
        newest = store.schema_status().expected
        sql(store, f"delete from {{hf}}schema_version where version = {newest}")
        try:
            unready = await probe.get("/readyz")
        finally:
            sql(store, f"insert into {{hf}}schema_version (version, name) values ({newest}, 'put_back')")
        assert (unready.status_code, unready.json()["status"]) == (503, "unready")
        assert unready.json()["reason"] == "the store's tables do not match this release"
        assert (await probe.get("/healthz")).status_code == 200


async def test_an_unavailable_store_is_503_with_a_code() -> None:
    away = Operations(PostgresStore("postgresql://ada:hunter2@127.0.0.1:1/none"))
    app = api(away)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://holdfast.test") as anybody:
        answer = await anybody.get("/api/v1/stats", headers={"authorization": "Bearer hf_something"})
        unready = await anybody.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
    assert unready.status_code == 503
    for secret in ("hunter2", "127.0.0.1", "ada", "none", "5432"):
        assert secret not in answer.text + unready.text
    assert unready.json() == {"status": "unready", "reason": "the store cannot be reached"}
    await away.store.close()


@BOTH
@pytest.mark.parametrize("read_only", [True, False])
async def test_a_read_only_api_executes_no_plan(store: Store, ops: Operations, read_only: bool) -> None:
    ids = await dead_letters(store, 2)
    plan = await ops.plan_replay(Filter(ids=tuple(ids)), actor="ada", reason="fixed")
    await ops.start_plan(plan.id, actor="ada", reason="fixed")
    app = api(ops, read_only=read_only)
    until = time.monotonic() + (1.3 if read_only else 20)  # an API that acts begins within a second
    async with app.router.lifespan_context(app):
        while (left := (await ops.plan(plan.id)).left) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    assert left == (2 if read_only else 0)
