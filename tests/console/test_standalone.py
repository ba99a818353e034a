"""The console served alone: this machine without a login, elsewhere never without one."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from click.testing import CliRunner

from holdfast.core.errors import Refused
from holdfast.interfaces.api.app import api
from holdfast.interfaces.api.endpoint import Caller
from holdfast.interfaces.cli import main
from holdfast.interfaces.server.standalone import standalone
from holdfast.ops.service import Operations
from holdfast.stores.admin.token import Scope
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.parametrize("place", ["sqlite"], indirect=True)

HERE = "http://127.0.0.1:8470"


@asynccontextmanager
async def serving(ops: Operations, address: str = HERE, **more: object) -> AsyncIterator[httpx2.AsyncClient]:
    options = {"host": "127.0.0.1", "auth": "none", "actor": "ada@laptop", **more}
    app = standalone(ops, **options)  # type: ignore[arg-type]
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url=address, headers={"origin": address}
    ) as client:
        yield client


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "shop.example", "127.0.0.1.evil.test"])  # noqa: S104
def test_it_does_not_start_for_other_machines_without_authentication(ops: Operations, host: str) -> None:
    with pytest.raises(Refused, match="--auth token"):
        standalone(ops, host=host, auth="none", actor="ada")
    standalone(ops, host=host, auth="token", actor="ada")


def test_the_command_refuses_with_its_code_and_the_remedy(tmp_path: Path, store: Store) -> None:
    assert isinstance(store, SqliteStore)
    for more in ([], ["--read-only"]):
        result = CliRunner().invoke(main, ["console", "--dsn", f"sqlite:///{store.path}", "--host", "0.0.0.0", *more])  # noqa: S104
        assert result.exit_code == 4
        assert "--auth token" in result.stderr


async def test_on_this_machine_it_acts_in_the_name_of_the_local_user(ops: Operations, shop: Store) -> None:
    async with serving(ops) as client:
        assert "ada@laptop" in (await client.get("/")).text
        form = {"csrf": client.cookies["holdfast_console"], "name": "payments"}
        assert (await client.post("/queues/pause", data=form)).status_code == 303
    assert (await ops.audit(limit=1))[0].actor == "ada@laptop"


@pytest.mark.parametrize("host", ["evil.test", "evil.test:8470", "127.0.0.1.evil.test"])
async def test_a_name_that_was_made_to_lead_here_gets_nothing(ops: Operations, shop: Store, host: str) -> None:
    async with serving(ops) as client:
        for path in ("/", "/dead", "/api/v1/stats"):
            answer = await client.get(path, headers={"host": host, "origin": f"http://{host}"})
            assert answer.status_code == 421, path
        form = {"csrf": "x" * 43, "name": "payments"}
        cookies = {"cookie": f"holdfast_console={'x' * 43}"}
        answer = await client.post(
            "/queues/pause", data=form, headers={"host": host, "origin": f"http://{host}", **cookies}
        )
        assert answer.status_code == 421


@pytest.mark.parametrize(
    "header",
    ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "x-forwarded-user", "X-Real-IP", "Via"],
)
async def test_without_a_login_a_request_that_passed_a_proxy_is_refused(
    ops: Operations, shop: Store, header: str
) -> None:
    async with serving(ops) as client:
        passed = {header: "for=203.0.113.9"}
        for path in ("/", "/dead", "/static/x", "/metrics", "/api/v1/stats"):
            answer = await client.get(path, headers=passed)
            assert answer.status_code == 403, path
            assert "proxy" in answer.text
            assert header.lower() in answer.text
        await client.get("/")
        form = {"csrf": client.cookies["holdfast_console"], "name": "payments"}
        assert (await client.post("/queues/pause", data=form, headers=passed)).status_code == 403
        assert (await client.get("/healthz", headers=passed)).status_code == 200
    async with serving(ops, "http://shop.example", auth="token") as client:
        assert (await client.get("/login", headers=passed)).status_code == 200


async def test_without_tokens_the_api_answers_no_other_machine_under_any_host_name(ops: Operations) -> None:
    app = api(ops, anonymous=Caller("ada", Scope.ADMIN))
    for client, status in (("127.0.0.1", 200), ("::1", 200), ("10.0.0.7", 403), ("203.0.113.9", 403)):
        transport = httpx2.ASGITransport(app, client=(client, 1))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as asking:
            assert (await asking.get("/api/v1/stats")).status_code == status, client


@pytest.mark.parametrize("address", ["http://localhost:1", "http://[::1]:1", "http://127.0.0.1"])
async def test_every_name_of_this_machine_is_answered_to(ops: Operations, address: str) -> None:
    async with serving(ops, address) as client:
        assert (await client.get("/workers")).status_code == 200


async def test_api_health_and_metrics_are_served_too(ops: Operations, shop: Store) -> None:
    async with serving(ops) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        assert (await client.get("/api/v1/stats")).json()["failed"] == 32
        assert "holdfast_" in (await client.get("/metrics")).text


async def test_with_tokens_everything_asks_for_one(ops: Operations, shop: Store) -> None:
    async with serving(ops, "http://shop.example", host="0.0.0.0", auth="token") as client:  # noqa: S104
        for path in ("/", "/dead", "/audit"):
            answer = await client.get(path)
            assert (answer.status_code, answer.headers["location"]) == (303, "/login")
        assert (await client.get("/metrics")).status_code == 401
        assert (await client.get("/api/v1/stats")).status_code == 401
        assert (await client.get("/healthz")).status_code == 200
        made = await ops.create_token("watcher", scope="read", actor="ada")
        bearer = {"authorization": f"Bearer {made.secret}"}
        assert (await client.get("/metrics", headers=bearer)).status_code == 200


async def sign_in(client: httpx2.AsyncClient, secret: str) -> httpx2.Response:
    await client.get("/login")
    return await client.post("/login", data={"csrf": client.cookies["holdfast_console"], "token": secret})


async def test_a_token_signs_in_with_its_role_until_it_is_revoked(ops: Operations, shop: Store) -> None:
    made = await ops.create_token("grace", scope="operate", actor="ada")
    async with serving(ops, "http://shop.example", host="0.0.0.0", auth="token") as client:  # noqa: S104
        answer = await sign_in(client, f" {made.secret} ")
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        session = next(one for one in answer.headers.get_list("set-cookie") if "session" in one)
        assert "HttpOnly" in session
        assert "SameSite=strict" in session
        assert made.secret not in session
        page = (await client.get("/queues")).text
        assert "grace" in page
        assert "operator" in page
        form = {"csrf": client.cookies["holdfast_console"]}
        assert (await client.post("/queues/pause", data={**form, "name": "payments"})).status_code == 303
        assert (await client.post("/keys/release", data={**form, "name": "k"})).status_code == 403
        await ops.revoke_token("grace", actor="ada")
        assert (await client.get("/queues")).headers["location"] == "/login"


async def test_signing_out_ends_the_session_permanently(ops: Operations) -> None:
    made = await ops.create_token("grace", scope="admin", actor="ada")
    async with serving(ops, "http://shop.example", host="0.0.0.0", auth="token") as client:  # noqa: S104
        await sign_in(client, made.secret)
        kept = client.cookies["holdfast_session"]
        assert (await client.post("/logout", data={})).status_code == 403
        assert (await client.get("/queues")).status_code == 200
        await client.post("/logout", data={"csrf": client.cookies["holdfast_console"]})
        client.cookies.set("holdfast_session", kept, domain="shop.example")
        assert (await client.get("/queues")).headers["location"] == "/login"


async def test_a_wrong_token_or_a_foreign_form_signs_no_user_in(ops: Operations) -> None:
    made = await ops.create_token("grace", scope="admin", actor="ada")
    async with serving(ops, "http://shop.example", host="0.0.0.0", auth="token") as client:  # noqa: S104
        assert (await sign_in(client, "hf_wrong")).status_code == 401
        form = {"csrf": client.cookies["holdfast_console"], "token": made.secret}
        assert (await client.post("/login", data=form, headers={"origin": "http://evil.test"})).status_code == 403
        assert (await client.post("/login", data={"token": made.secret})).status_code == 403
        assert "holdfast_session" not in client.cookies
    assert [(one.actor, one.action) for one in await ops.audit()] == [("ada", "create")]


@contextlib.contextmanager
def started(store: SqliteStore, *more: str) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`holdfast console` as people start it, and its address."""
    env = {**os.environ, "HOLDFAST_DSN": f"sqlite:///{store.path}"}
    command = [sys.executable, "-m", "holdfast", "console", "--port", "0", *more]
    process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr
        said = ""
        for line in process.stderr:
            said += line
            if found := re.search(r"http://\S+/", line):
                yield process, found[0]
                return
        raise AssertionError(said)
    finally:
        process.kill()
        process.communicate()


async def test_the_command_serves_until_it_is_asked_to_end(ops: Operations, shop: Store) -> None:
    assert isinstance(shop, SqliteStore)
    with started(shop, "--actor", "ada") as (process, address):
        async with httpx2.AsyncClient(trust_env=False) as client:
            assert "KeyError" in (await client.get(address)).text
            assert (await client.get(address, headers={"host": "evil.test"})).status_code == 421
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


BROWSER = {"sec-fetch-site": "same-origin"}


@pytest.mark.parametrize(
    ("address", "origin", "headers", "secure"),
    [
        ("http://shop.example", "https://shop.example", BROWSER, True),
        ("http://shop.example", "https://shop.example", {}, True),
        ("https://shop.example", "https://shop.example", {}, True),
        ("http://shop.example", "http://shop.example", {}, False),
        ("http://shop.example", "http://shop.example", {"x-forwarded-proto": "https"}, False),
        ("http://127.0.0.1:8470", "http://127.0.0.1:8470", BROWSER, False),
        ("http://localhost:8470", "http://localhost:8470", BROWSER, False),
    ],
    ids=["proxy", "proxy-old-browser", "tls", "plain", "claimed", "here", "localhost"],
)
async def test_cookies_are_secure_where_the_browser_came_over_https(
    ops: Operations, address: str, origin: str, headers: dict[str, str], secure: bool
) -> None:
    made = await ops.create_token("grace", scope="admin", actor="ada")
    async with serving(ops, address, host="0.0.0.0", auth="token") as client:  # noqa: S104
        client.headers.update(headers)
        del client.headers["origin"]
        page = await client.get("/login")
        # A browser sends Origin only with a form. Before that, only Sec-Fetch-Site shows that a proxy terminates TLS.
        if headers == BROWSER or address.startswith("https"):
            assert ("Secure" in page.headers["set-cookie"]) is secure
        token = page.headers["set-cookie"].partition("=")[2].partition(";")[0]
        answer = await client.post(
            "/login",
            data={"csrf": token, "token": made.secret},
            headers={"origin": origin, "cookie": f"holdfast_console={token}"},
        )
        assert answer.status_code == 303, answer.text
        assert ("Secure" in answer.headers["set-cookie"]) is secure
