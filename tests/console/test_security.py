"""Who may do what: every change asks for role, token and origin, and every refusal is in the audit."""

import re
from collections import Counter

import httpx2
import pytest
from structlog.testing import capture_logs

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.api.app import api
from holdfast.interfaces.console.actions import ACTIONS
from holdfast.interfaces.console.app import PAGES
from holdfast.interfaces.console.user import Role
from holdfast.ops.service import Operations
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.stores.protocol import Store
from tests.console.conftest import ADDRESS, ClientAs, post

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


async def refusals(ops: Operations) -> list[tuple[str, str, str]]:
    return [(one.actor, one.target, one.reason or "") for one in await ops.audit() if one.action == "refused"]


@pytest.mark.parametrize("path", ACTIONS)
async def test_a_viewer_changes_nothing(client_as: ClientAs, ops: Operations, path: str) -> None:
    async with client_as("viewer") as client:
        answer = await post(client, path, name="mail", action="replay")
    assert answer.status_code == 403
    needed = ACTIONS[path].role
    assert await refusals(ops) == [("ada", f"/ops{path}", f"This requires the {needed} role. ada has the viewer role.")]


@pytest.mark.parametrize("path", [path for path, change in ACTIONS.items() if change.role is Role.ADMIN])
async def test_an_operator_does_nothing_that_takes_an_admin(client_as: ClientAs, ops: Operations, path: str) -> None:
    async with client_as("operator") as client:
        assert (await post(client, path, name="mail")).status_code == 403
    assert len(await refusals(ops)) == 1


async def test_a_console_that_is_read_only_changes_nothing_even_for_an_admin(
    client_as: ClientAs, ops: Operations, shop: Store
) -> None:
    async with client_as("admin", read_only=True) as client:
        assert (await post(client, "/queues/pause", name="payments")).status_code == 403
        page = (await client.get("/ops/queues")).text
    assert '<form method="post"' not in page
    assert "read-only" in page
    assert [queue.name for queue in await ops.queues() if queue.paused_at] == ["mail"]


@pytest.mark.parametrize("token", [None, "", "x" * 43])
async def test_a_form_without_the_token_of_its_page_is_refused(
    client_as: ClientAs, ops: Operations, token: str | None
) -> None:
    form = {"name": "mail"} if token is None else {"name": "mail", "csrf": token}
    async with client_as("admin") as client:
        answer = await client.post("/ops/queues/pause", data=form)
        assert answer.status_code == 403
        client.cookies.clear()  # an empty token is not equal to no cookie
        assert (await client.post("/ops/queues/pause", data=form)).status_code == 403
    assert [one[0] for one in await refusals(ops)] == ["ada", "ada"]


@pytest.mark.parametrize(
    "origin",
    ["http://evil.test", "null", "http://shop.test.evil.test", "http://shop.test:81", "evil", "http://[", None],
)
async def test_a_change_asked_for_by_another_sites_page_is_refused(
    client_as: ClientAs, ops: Operations, origin: str | None
) -> None:
    async with client_as("admin") as client:
        del client.headers["origin"]
        if origin is not None:
            client.headers["origin"] = origin
        assert (await post(client, "/queues/pause", name="mail")).status_code == 403
        client.headers["sec-fetch-site"] = "cross-site"
        assert (await post(client, "/queues/pause", name="mail")).status_code == 403
    assert len(await refusals(ops)) == 2


async def test_an_origin_behind_a_proxy_can_be_named(client_as: ClientAs, shop: Store) -> None:
    async with client_as("admin", origins=["https://ops.shop.example"]) as client:
        client.headers["origin"] = "https://ops.shop.example"
        assert (await post(client, "/queues/pause", name="payments")).status_code == 303


@pytest.mark.parametrize("host", ["evil.test", "shop.test.evil.test", "[", ""])
async def test_a_foreign_host_gets_nothing(client_as: ClientAs, host: str) -> None:
    async with client_as("admin", hosts=["shop.test"]) as client:
        for path in ("/ops/", "/ops/dead"):
            answer = await client.get(path, headers={"host": host})
            assert answer.status_code == 421
            assert "ada" not in answer.text
        answer = await client.post("/ops/queues/pause", headers={"host": host, "origin": f"http://{host}"})
        assert answer.status_code == 421


@pytest.mark.parametrize("odd", ["[", "a b", "\u00e9", "x:y:z"])
async def test_odd_headers_break_nothing(client_as: ClientAs, odd: str) -> None:
    headers = {
        b"host": odd.encode(),
        b"referer": f"http://{odd}/".encode(),
        b"cookie": f"holdfast_console={odd}".encode(),
    }
    async with client_as("viewer") as client:
        assert (await client.get("/ops/audit", headers=headers)).status_code == 200
        answer = await client.post("/ops/queues/pause", headers={**headers, b"origin": f"http://{odd}".encode()})
    assert answer.status_code == 403
    assert "default-src" in answer.headers["content-security-policy"]


async def test_a_refusal_leads_back_to_the_page_it_came_from_and_nowhere_else(client_as: ClientAs, shop: Store) -> None:
    async with client_as("admin") as client:
        for referer, link in (
            (f"{ADDRESS}/ops/queues?a=1", 'href="/ops/queues?a=1"'),
            ("http://evil.test/x", None),
            (f"{ADDRESS}//evil.test/x", 'href="/evil.test/x"'),
        ):
            client.headers["referer"] = referer
            page = (await post(client, "/queues/pause", name="no-such-queue")).text
            assert ("Back</a>" in page) == (link is not None)
            assert link is None or link in page


async def test_a_user_unknown_to_the_application_is_refused(client_as: ClientAs, ops: Operations, shop: Store) -> None:
    async with client_as(None) as client:
        for path in (path for path in PAGES if "{" not in path):
            answer = await client.get(f"/ops{path}")
            assert answer.status_code == 401
            assert "stock" not in answer.text
        assert (await post(client, "/queues/pause", name="payments")).status_code == 401
    assert await refusals(ops) == []


async def test_refusals_of_a_flood_fill_neither_the_audit_nor_the_log(client_as: ClientAs, ops: Operations) -> None:
    with capture_logs() as logged:
        async with client_as(None) as client:
            for _ in range(70):
                await post(client, "/queues/pause")
        async with client_as("viewer") as client:
            for _ in range(70):
                await post(client, "/queues/pause")
    assert Counter(one["actor_key"] for one in logged if one["event"] == "request refused") == {
        "unauthenticated": 60,
        "ada": 60,
    }
    assert Counter(one.actor for one in await ops.audit(limit=100)) == {"ada": 60}, "strangers are not audited"


@pytest.mark.parametrize("answer", [42, True, ("ada",), ("ada", "king"), ("", "admin"), " "])
async def test_an_invalid_actor_opens_nothing_and_is_logged_for_its_developer(ops: Operations, answer: object) -> None:
    from starlette.requests import Request

    from holdfast.interfaces.console.user import identify

    with capture_logs() as logged, pytest.raises(ConfigurationError) as refused:
        await identify(lambda _: answer, Request({"type": "http"}))  # type: ignore[arg-type,return-value]
    (warning,) = logged
    assert (warning["event"], warning["log_level"], warning["error"]) == (
        "console actor invalid",
        "warning",
        str(refused.value),
    )
    assert "king" not in str(answer) or "the role 'king'; the roles are viewer, operator, admin" in warning["error"]


async def test_an_actor_may_be_async_and_a_bare_name_is_a_viewer(ops: Operations) -> None:
    from starlette.requests import Request

    from holdfast.interfaces.console.user import User, identify

    async def staff(_: Request) -> str:
        return " ada "

    assert await identify(staff, Request({"type": "http"})) == User("ada", Role.VIEWER)


async def test_every_answer_is_sealed(client_as: ClientAs, shop: Store) -> None:
    async with client_as("admin") as client:
        page = await client.get("/ops/")
        answers = [
            page,
            await client.get("/ops/nowhere"),
            await client.get("/ops/deliveries/no-id"),
            await client.get("/ops/queues/pause"),
            await post(client, "/queues/pause", name="payments"),
            await post(client, "/queues/pause", csrf="wrong"),
            *[await client.get(path) for path in re.findall(r'(?:src|href)="(/ops/static/[^"]+)"', page.text)],
        ]
    assert [answer.status_code for answer in answers] == [200, 404, 400, 405, 303, 403, 200, 200, 200]
    for answer in answers:
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    for answer in answers[:6]:
        assert answer.headers["cache-control"] == "no-store"
    for cookie in httpx2.Headers(page.headers).get_list("set-cookie"):
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert "Path=/ops/" in cookie


async def test_a_cookie_is_secure_where_the_page_is(client_as: ClientAs) -> None:
    async with client_as("viewer") as client:
        client.cookies.clear()
        answer = await client.get(f"{ADDRESS.replace('http', 'https')}/ops/workers")
    assert "Secure" in answer.headers["set-cookie"]


async def test_a_form_that_never_ends_is_not_read_to_its_end(client_as: ClientAs) -> None:
    async with client_as("admin") as client:
        assert (await post(client, "/queues/pause", name="x" * 100_000)).status_code == 413
        answer = await client.post("/ops/queues/pause", data={f"f{n}": "1" for n in range(200)})
        assert answer.status_code == 400


async def test_a_viewer_does_not_see_the_path_of_a_webhooks_address(
    client_as: ClientAs, ops: Operations, shop: Store
) -> None:
    options = WebhookOptions(allow_http=True, allow_networks=("127.0.0.0/8",))
    await ops.add_webhook("http://127.0.0.1/services/x9f8e7d6c5b4a3", events=["a"], actor="ada", options=options)
    for role, seen in (("viewer", False), ("operator", True), ("admin", True), ("viewer", False)):
        async with client_as(role) as client:
            page = (await client.get("/ops/webhooks")).text
            assert "http://127.0.0.1" in page
            assert ("x9f8e7d6c5b4a3" in page) is seen
    for scope, seen in (("read", False), ("operate", True)):
        made = await ops.create_token(scope, scope=scope, actor="ada")
        transport = httpx2.ASGITransport(api(ops))
        headers = {"authorization": f"Bearer {made.secret}"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://a", headers=headers) as client:
            assert ("x9f8e7d6c5b4a3" in (await client.get("/api/v1/webhooks")).text) is seen
