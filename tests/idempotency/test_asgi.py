"""The ASGI middleware in front of a small application, on every place that keeps records."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx2
import pytest
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from holdfast import ConfigurationError, Holdfast, IdempotencyMiddleware, StoreUnavailable
from holdfast.idempotency.records import ReadRecord, Records, ReleaseKey, Step, StoreRecords, StoreResponse
from holdfast.idempotency.redis import RedisRecords
from tests.idempotency.record_stores import RecordStore
from tests.servers.postgres import PostgresServer

BODY = {"amount": 5}


@dataclass
class Shop:
    """An application that counts what it does. `answer` is what it does with a request after counting."""

    runs: list[dict[str, Any]] = field(default_factory=list)
    answer: Callable[["Shop", dict[str, Any], Any, Any], Any] | None = None
    status: int = 201
    headers: tuple[tuple[bytes, bytes], ...] = ((b"content-type", b"application/json"),)
    gone: bool = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.runs.append({"scope": scope, "body": body})
        if self.answer is not None:
            await self.answer(self, scope, receive, send)
            return
        await self.respond(send, json.dumps({"run": len(self.runs)}).encode())

    async def respond(self, send: Any, *chunks: bytes) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


def guard(place: RecordStore | Records, shop: Shop, **options: Any) -> httpx2.AsyncClient:
    """A client whose requests pass the middleware. The scope is the header x-tenant."""
    records = place.records if isinstance(place, RecordStore) else place
    options = {"scope": lambda request: request.headers.get("x-tenant", "t1"), "records": records, **options}
    app = IdempotencyMiddleware(shop, **options)
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://shop")


async def post(
    client: httpx2.AsyncClient, key: str | None = "k", path: str = "/orders", **more: Any
) -> httpx2.Response:
    headers = {**({} if key is None else {"Idempotency-Key": key}), **more.pop("headers", {})}
    if "content" not in more:
        more.setdefault("json", BODY)
    return await client.post(path, headers=headers, **more)


def code(response: httpx2.Response) -> str:
    """The code of an RFC 9457 answer."""
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code
    assert body["title"]
    assert body["detail"]
    assert body["type"] == f"urn:holdfast:{body['code']}"
    return str(body["code"])


async def test_a_repetition_gets_the_first_answer_marked_and_nothing_runs_again(place: RecordStore) -> None:
    shop = Shop(headers=((b"content-type", b"application/json"), (b"x-order", b"7")))
    client = guard(place, shop)
    first, again = await post(client), await post(client)
    assert len(shop.runs) == 1
    assert (first.status_code, first.json()) == (201, {"run": 1})
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["x-order"] == "7"
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["content-length"] == str(len(first.content))
    assert "idempotent-replayed" not in first.headers


async def test_another_request_under_the_same_key_is_refused(place: RecordStore) -> None:
    shop = Shop()
    client = guard(place, shop)
    await post(client)
    others = [
        await post(client, json={"amount": 6}),
        await post(client, path="/orders?x=1"),
        await post(client, path="/refunds"),
        await client.patch("/orders", json=BODY, headers={"Idempotency-Key": "k"}),
    ]
    assert [(r.status_code, code(r)) for r in others] == [(409, "idempotency-key-reused")] * 4
    assert (await post(guard(place, shop, conflict=422), json={"amount": 6})).status_code == 422
    assert len(shop.runs) == 1


async def test_tenants_never_see_each_others_answers(place: RecordStore) -> None:
    shop = Shop()
    client = guard(place, shop)
    answers = [await post(client, headers={"x-tenant": tenant}) for tenant in ("t1", "t2", "t1", "t2")]
    assert [r.json()["run"] for r in answers] == [1, 2, 1, 2]
    other = await post(client, headers={"x-tenant": "t3"}, json={"amount": 6})
    assert other.status_code == 201


async def test_a_hundred_at_once_run_once_and_agree_or_say_in_progress(place: RecordStore) -> None:
    async def slow(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.05)
        await shop.respond(send, b"done")

    shop = Shop(answer=slow)
    client = guard(place, shop)
    answers = await asyncio.gather(*(post(client) for _ in range(100)))
    assert len(shop.runs) == 1
    assert {r.status_code for r in answers} <= {201, 409}
    for r in answers:
        if r.status_code == 409:
            assert code(r) == "idempotent-request-in-progress"
            assert r.headers["retry-after"] == "1"
        else:
            assert r.content == b"done"


async def test_those_who_wait_get_the_answer(place: RecordStore) -> None:
    async def slow(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.1)
        await shop.respond(send, b"done")

    shop = Shop(answer=slow)
    client = guard(place, shop, wait="20s")
    answers = await asyncio.gather(*(post(client) for _ in range(5)))
    assert [r.status_code for r in answers] == [201] * 5
    assert len(shop.runs) == 1


async def test_who_waits_for_a_request_that_failed_runs_it(place: RecordStore) -> None:
    async def fails_first(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0.05)
        shop.status = 500 if len(shop.runs) == 1 else 201
        await shop.respond(send, b"x")

    client = guard(place, Shop(answer=fails_first), wait="20s")
    answers = await asyncio.gather(post(client), post(client))
    assert sorted(r.status_code for r in answers) == [201, 500]


@pytest.mark.parametrize(
    ("status", "kept", "runs"),
    [
        (500, None, 2),
        (503, None, 2),
        (422, None, 2),
        (422, range(200, 500), 1),
        (500, range(200, 600), 2),
        (302, None, 1),
    ],
)
async def test_what_is_kept_depends_on_the_status(sql_place: RecordStore, status: int, kept: Any, runs: int) -> None:
    shop = Shop(status=status)
    client = guard(sql_place, shop, **({} if kept is None else {"cached_statuses": kept}))
    answers = [await post(client), await post(client)]
    assert [r.status_code for r in answers] == [status] * 2
    assert len(shop.runs) == runs


@pytest.mark.parametrize("status", [422, 500, 503, "exception"])
async def test_after_a_failure_another_request_under_the_key_is_still_refused(
    place: RecordStore, status: int | str
) -> None:
    async def fails(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        if status == "exception" and len(shop.runs) == 1:
            raise RuntimeError("boom")
        await shop.respond(send, b"done")

    shop = Shop(answer=fails, status=201 if isinstance(status, str) else status)
    client = guard(place, shop)
    with nullcontext() if status != "exception" else pytest.raises(RuntimeError):
        await post(client)
    other = await post(client, json={"amount": 6})
    assert (other.status_code, code(other)) == (409, "idempotency-key-reused")
    assert len(shop.runs) == 1
    shop.status = 201
    assert (await post(client)).status_code == 201, "the same request may try again"
    assert len(shop.runs) == 2


async def test_after_a_failure_any_request_may_use_the_key_where_that_was_chosen(place: RecordStore) -> None:
    shop = Shop(status=500)
    client = guard(place, shop, reuse_after_failure=True)
    await post(client)
    shop.status = 201
    assert (await post(client, json={"amount": 6})).status_code == 201


async def test_an_exception_releases_the_key_and_is_the_servers_to_answer(place: RecordStore) -> None:
    async def breaks(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        if len(shop.runs) == 1:
            raise RuntimeError("boom")
        await shop.respond(send, b"fine")

    client = guard(place, Shop(answer=breaks))
    with pytest.raises(RuntimeError, match="boom"):
        await post(client)
    assert (await post(client)).content == b"fine"


async def test_a_request_that_never_answers_releases_the_key(sql_place: RecordStore) -> None:
    async def silent(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        if len(shop.runs) > 1:
            await shop.respond(send, b"fine")

    client = guard(sql_place, Shop(answer=silent))
    with pytest.raises(AssertionError):  # the transport's: no answer came
        await post(client)
    assert (await post(client)).content == b"fine"


async def test_quoted_and_bare_keys_are_the_same(sql_place: RecordStore) -> None:
    shop = Shop()
    client = guard(sql_place, shop)
    await post(client, '"a-1"')
    for same in ("a-1", '"a-1" ', '"a-1";v=1', '"a-1"; a; b="x"'):
        assert (await post(client, same)).headers["idempotent-replayed"] == "true"
    assert len(shop.runs) == 1


@pytest.mark.parametrize(
    "key", ["", " ", "x" * 256, "two words", "a,b", '"a', '"a"b', '"a"b"', "ключ".encode(), '"\\a"', '"']
)
async def test_a_key_that_cannot_be_used_is_refused_at_the_door(key: Any) -> None:
    shop = Shop()
    client = guard(Unreachable(), shop)
    response = await post(client, key)
    assert (response.status_code, code(response)) == (400, "idempotency-key-invalid")
    assert response.json()["title"] == "The header Idempotency-Key is invalid"
    assert response.json()["detail"].startswith("Idempotency-Key: key ")
    assert shop.runs == []


async def test_a_key_sent_twice_is_refused() -> None:
    client = guard(Unreachable(), Shop())
    response = await client.post("/", headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")])
    assert (response.status_code, code(response)) == (400, "idempotency-key-invalid")


async def test_without_a_key_a_request_passes_unless_one_is_required(sql_place: RecordStore) -> None:
    shop = Shop()
    assert (await post(guard(sql_place, shop), None)).status_code == 201
    refused = await post(guard(sql_place, shop, required=True), None)
    assert (refused.status_code, code(refused)) == (400, "idempotency-key-missing")
    assert refused.json()["title"] == "The header Idempotency-Key is required"
    only_orders = guard(sql_place, shop, required=lambda request: request.path == "/orders")
    assert (await post(only_orders, None)).status_code == 400
    assert (await post(only_orders, None, path="/other")).status_code == 201
    assert len(shop.runs) == 2


async def test_other_methods_pass_untouched(sql_place: RecordStore) -> None:
    shop = Shop(status=200)
    client = guard(sql_place, shop, required=True)
    for _ in range(2):
        assert (await client.get("/orders", headers={"Idempotency-Key": "k"})).status_code == 200
    assert len(shop.runs) == 2
    put = guard(sql_place, shop, methods=["PUT"])
    for _ in range(2):
        await put.put("/orders", headers={"Idempotency-Key": "k"})
    assert len(shop.runs) == 3


@pytest.mark.parametrize("scope", [None, "", True, "x" * 256, b"t1", "a\nb"])
async def test_a_request_that_does_not_say_whose_it_is_is_refused(scope: Any) -> None:
    shop = Shop()
    response = await post(guard(Unreachable(), shop, scope=lambda request: scope))
    assert (response.status_code, code(response)) == (400, "idempotency-scope-missing")
    if scope is None:
        assert response.json()["detail"].startswith(
            "scope(request) returned None, which names no user or tenant; sign in"
        )
    assert shop.runs == []


async def test_the_scope_has_no_default_and_may_be_awaited(sql_place: RecordStore) -> None:
    with pytest.raises(TypeError, match="scope"):
        IdempotencyMiddleware(Shop(), records=sql_place.records)  # type: ignore[call-arg]

    async def tenant(request: Any) -> int:
        return 7

    shop = Shop()
    assert (await post(guard(sql_place, shop, scope=tenant))).status_code == 201
    assert shop.runs[0]["scope"]["state"]["idempotency"].scope == "7"


async def test_json_counts_by_value_and_other_bodies_by_their_bytes(sql_place: RecordStore) -> None:
    shop = Shop()
    client = guard(sql_place, shop)
    as_json = {"content-type": "application/json; charset=utf-8"}
    texts = [b'{"a": 1, "b": [1.5, null]}', b'{"b":[1.5,null],"a":1}']
    for text in texts:
        assert (await post(client, "json", content=text, headers=as_json)).status_code == 201
    for other in (
        b'{"a":1,"b":[1.5,0]}',
        b'{"a":"1","b":[1.5,null]}',
        b'{"a":10000000000000000000001,"b":[1.5,null]}',
        b'{"a":2,"a":1,"b":[1.5,null]}',  # which of the two an application reads is not known
        b'{"a":1,"b":[1.50000000000000000001,null]}',
        b"{",
    ):
        assert (await post(client, "json", content=other, headers=as_json)).status_code == 409
    statuses = [(await post(client, "text", content=text)).status_code for text in texts]
    assert statuses == [201, 409]
    assert len(shop.runs) == 2


async def test_the_application_reads_the_body_unchanged_in_any_pieces(sql_place: RecordStore) -> None:
    async def pieces():
        for piece in (b"one ", b"two ", b"three"):
            yield piece

    shop = Shop()
    await post(guard(sql_place, shop), content=pieces())
    assert shop.runs[0]["body"] == b"one two three"


async def test_a_request_over_the_limit_is_refused_before_it_is_read_to_its_end() -> None:
    read = 0

    async def endless():
        nonlocal read
        while True:
            read += 1000
            yield b"x" * 1000

    shop = Shop()
    response = await post(guard(Unreachable(), shop, max_body=10_000), content=endless())
    assert (response.status_code, code(response)) == (413, "idempotent-request-too-large")
    assert read <= 12_000
    assert shop.runs == []


async def test_a_client_that_goes_away_while_sending_begins_nothing() -> None:
    shop, sent = Shop(), []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    app = IdempotencyMiddleware(shop, records=Unreachable(), scope=lambda request: "t1")
    headers = [(b"idempotency-key", b"k")]
    await app({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
    assert (sent, shop.runs) == ([], [])


async def test_a_client_that_went_away_before_the_answer_finds_it_later(sql_place: RecordStore) -> None:
    shop = Shop()
    app = IdempotencyMiddleware(shop, records=sql_place.records, scope=lambda request: "t1")
    body = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        return body.pop() if body else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise OSError("the client is gone")

    headers = [(b"idempotency-key", b"k")]
    with pytest.raises(OSError, match="gone"):
        await app({"type": "http", "method": "POST", "path": "/", "headers": headers}, receive, send)
    again = await guard(sql_place, shop).post("/", headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.headers["idempotent-replayed"]) == (201, "true")
    assert len(shop.runs) == 1


async def test_an_answer_that_stops_because_the_client_left_is_not_carried_out_again(sql_place: RecordStore) -> None:
    """Starlette stops a stream when it hears that the client is gone, and returns as if nothing were."""
    runs: list[int] = []

    async def create(request: Request) -> StreamingResponse:
        runs.append(1)

        async def pieces() -> AsyncIterator[bytes]:
            yield b"a"
            await asyncio.sleep(60)

        return StreamingResponse(pieces(), status_code=201)

    inner = Starlette(routes=[Route("/orders", create, methods=["POST"])])
    app = IdempotencyMiddleware(inner, records=sql_place.records, scope=lambda request: "t1")
    messages = [{"type": "http.request", "body": json.dumps(BODY).encode()}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"idempotency-key", b"k"), (b"content-type", b"application/json")]
    await app({"type": "http", "method": "POST", "path": "/orders", "headers": headers}, receive, send)
    again = await post(httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://shop"))
    assert (again.status_code, code(again)) == (409, "idempotent-response-not-kept")
    assert (sent, runs) == ([], [1])


async def test_an_answer_too_large_to_keep_is_sent_and_not_repeated(place: RecordStore) -> None:
    async def large(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        await shop.respond(send, *[b"x" * 1000] * 20)

    shop = Shop(answer=large)
    client = guard(place, shop, max_response=5000)
    assert (await post(client)).content == b"x" * 20_000
    again = await post(client)
    assert (again.status_code, code(again)) == (409, "idempotent-response-not-kept")
    assert "201" in again.json()["detail"]
    assert len(shop.runs) == 1


async def test_a_stream_of_events_flows_from_its_beginning(sql_place: RecordStore) -> None:
    came = asyncio.Event()

    async def events(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": list(shop.headers)})
        await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
        assert came.is_set()
        await send({"type": "http.response.body", "body": b"data: 2\n\n"})

    shop = Shop(answer=events, headers=((b"content-type", b"text/event-stream"),))
    app = IdempotencyMiddleware(shop, records=sql_place.records, scope=lambda request: "t1")
    chunks = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            came.set()
            chunks.append(message["body"])

    await app({"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")]}, receive, send)
    assert chunks == [b"data: 1\n\n", b"data: 2\n\n"]


async def test_cookies_and_headers_of_one_connection_are_not_given_again(sql_place: RecordStore) -> None:
    headers = [
        ("set-cookie", "session=1"),
        ("connection", "x-hop"),
        ("x-hop", "1"),
        ("keep-alive", "5"),
        ("date", "now"),
    ]
    shop = Shop(headers=tuple((n.encode(), v.encode()) for n, v in [*headers, ("etag", '"v1"'), ("Vary", "accept")]))
    client = guard(sql_place, shop)
    first, again = await post(client), await post(client)
    assert first.headers["set-cookie"] == "session=1"
    assert not {name for name, _ in headers} & set(again.headers)
    assert (again.headers["etag"], again.headers["vary"]) == ('"v1"', "accept")


async def test_an_application_cannot_send_a_file_past_the_middleware(sql_place: RecordStore) -> None:
    shop = Shop()
    app = IdempotencyMiddleware(shop, records=sql_place.records, scope=lambda request: "t1")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None: ...

    extensions: dict[str, Any] = {"http.response.pathsend": {}, "tls": {}}
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k")], "state": {"a": 1}}
    await app({**scope, "extensions": extensions}, receive, send)
    assert shop.runs[0]["scope"]["extensions"] == {"tls": {}}
    assert shop.runs[0]["scope"]["state"]["a"] == 1
    assert extensions.keys() == {"http.response.pathsend", "tls"}


async def test_what_a_handler_puts_into_the_requests_state_is_seen_outside(sql_place: RecordStore) -> None:
    async def signs_in(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        scope["state"]["user"] = "ada"
        await shop.respond(send)

    shop = Shop(answer=signs_in)
    app = IdempotencyMiddleware(shop, records=sql_place.records, scope=lambda request: "t1")
    seen = []

    async def outside(scope: Any, receive: Any, send: Any) -> None:
        await app(scope, receive, send)
        seen.append(scope["state"]["user"])

    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(outside), base_url="http://shop")
    for key in (None, "k"):
        await post(client, key)
    assert seen == ["ada", "ada"]


class Unreachable:
    """Records that cannot be reached."""

    store = None

    def __init__(self, *broken: type) -> None:
        self.broken = broken

    async def do(self, step: Step) -> Any:
        raise StoreUnavailable("postgresql://db/shop", "refused")

    def do_sync(self, step: Step) -> Any:
        raise StoreUnavailable("postgresql://db/shop", "refused")


class Breaking(Unreachable):
    """Records that break down for some steps."""

    def __init__(self, records: Records, *broken: type) -> None:
        self.records, self.broken = records, broken

    async def do(self, step: Step) -> Any:
        return await (super().do(step) if isinstance(step, self.broken) else self.records.do(step))


async def test_when_the_records_are_away_nothing_runs(caplog: pytest.LogCaptureFixture) -> None:
    shop = Shop()
    with structlog.testing.capture_logs() as log:
        response = await post(guard(Unreachable(), shop))
    assert (response.status_code, code(response)) == (503, "idempotency-store-unavailable")
    assert response.headers["retry-after"] == "1"
    assert "db/shop" not in response.text
    assert shop.runs == []
    assert log[0]["event"] == "idempotency store unavailable"


@pytest.mark.parametrize("dsn", ["postgresql://127.0.0.1:1/shop", "sqlite:////nowhere/at/all/shop.db"])
async def test_a_database_that_is_away_is_fail_closed(dsn: str) -> None:
    shop, hf = Shop(), Holdfast(dsn)
    for _ in range(2):
        response = await post(guard(StoreRecords(hf), shop))
        assert (response.status_code, code(response)) == (503, "idempotency-store-unavailable")
    assert shop.runs == []
    await hf.close()


async def test_a_database_without_tables_is_fail_closed_and_says_what_to_do(postgres18: PostgresServer) -> None:
    shop, hf = Shop(), Holdfast(postgres18.create_database(f"bare_{uuid4().hex}"))
    with structlog.testing.capture_logs() as log:
        assert (await post(guard(StoreRecords(hf), shop))).status_code == 503
    assert "holdfast schema migrate" in log[0]["error"]
    assert shop.runs == []
    await hf.close()


async def test_a_redis_that_is_away_is_fail_closed_too() -> None:
    shop = Shop()
    records = RedisRecords("redis://127.0.0.1:1/0")
    assert (await post(guard(records, shop))).status_code == 503
    assert shop.runs == []
    await records.close()


async def test_when_the_records_go_away_after_the_effect_the_client_gets_its_answer(sql_place: RecordStore) -> None:
    client = guard(Breaking(sql_place.records, StoreResponse), Shop())
    assert (await post(client)).status_code == 201
    again = await post(client)
    assert (again.status_code, code(again)) == (409, "idempotent-request-in-progress")


async def test_when_the_records_go_away_while_it_runs_it_is_not_reported_as_not_executed(
    sql_place: RecordStore,
) -> None:
    async def completes(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        await scope["state"]["idempotency"].complete({"id": 1}, status=201, conn=None)
        await shop.respond(send, b"{}")

    answer = await post(guard(Breaking(sql_place.records, ReadRecord), Shop(answer=completes)))
    assert (answer.status_code, code(answer)) == (503, "idempotency-store-unavailable")
    assert answer.json()["title"] == "It is unknown whether the request ran"
    again = await post(guard(sql_place, Shop()))
    assert (again.status_code, again.json()) == (201, {"id": 1})


async def test_when_a_key_cannot_be_released_its_lease_frees_it(sql_place: RecordStore) -> None:
    shop = Shop(status=500)
    client = guard(Breaking(sql_place.records, ReleaseKey), shop)
    assert (await post(client)).status_code == 500
    assert (await post(client)).status_code == 409
    sql_place.pass_time(timedelta(seconds=11))
    shop.status = 201
    assert (await post(client)).status_code == 201


async def test_a_late_finisher_gets_the_answer_that_counts(place: RecordStore) -> None:
    """Its lease expired and another request ran in the meantime."""
    stalled, resume = asyncio.Event(), asyncio.Event()

    async def stalls_first(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        run = len(shop.runs)
        if run == 1:
            stalled.set()
            await resume.wait()
        await shop.respond(send, f"run {run}".encode())

    shop = Shop(answer=stalls_first)
    client = guard(place, shop)
    first = asyncio.create_task(post(client))
    await stalled.wait()
    place.pass_time(timedelta(seconds=11))
    second = await post(client)
    resume.set()
    assert (await first).content == second.content == b"run 2"
    assert (await post(client)).content == b"run 2"


async def test_a_long_request_keeps_its_lease_and_a_hung_one_does_not(place: RecordStore) -> None:
    begun, resume = asyncio.Event(), asyncio.Event()

    async def long(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        if len(shop.runs) == 1:
            begun.set()
            await resume.wait()
        await shop.respond(send, b"done")

    shop = Shop(answer=long)
    client = guard(place, shop, lease="600ms", max_lock="2s")
    first = asyncio.create_task(post(client))
    await begun.wait()
    await asyncio.sleep(1)
    assert (await post(client)).status_code == 409
    assert len(shop.runs) == 1
    second = guard(place, shop, lease="600ms", wait="20s")  # until the first is no longer renewed
    assert (await post(second)).status_code == 201
    assert len(shop.runs) == 2
    resume.set()
    assert (await first).status_code == 201


async def test_a_cancelled_request_leaves_the_key_to_its_lease(sql_place: RecordStore) -> None:
    begun = asyncio.Event()

    async def hangs(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        if len(shop.runs) == 1:
            begun.set()
            await asyncio.sleep(60)
        await shop.respond(send, b"done")

    shop = Shop(answer=hangs)
    client = guard(sql_place, shop)
    first = asyncio.create_task(post(client))
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert (await post(client)).status_code == 409
    sql_place.pass_time(timedelta(seconds=11))
    assert (await post(client)).status_code == 201


async def test_an_operators_release_fences_the_request_that_holds_the_key(sql_place: RecordStore) -> None:
    from holdfast.stores.integrations.idempotency import release_record

    assert sql_place.hf is not None
    begun, resume = asyncio.Event(), asyncio.Event()

    async def waits(shop: Shop, scope: Any, receive: Any, send: Any) -> None:
        begun.set()
        await resume.wait()
        await shop.respond(send, b"done")

    client = guard(sql_place, Shop(answer=waits))
    first = asyncio.create_task(post(client))
    await begun.wait()
    await sql_place.hf.store.run(release_record("t1", "k", "ada", None))
    resume.set()
    assert (await first).status_code == 201  # its effect is done, and no other request responds
    assert await sql_place.records.do(ReadRecord(_held("t1", "k"))) is None


def _held(scope: str, key: str) -> Any:
    from holdfast.stores.integrations.idempotency import Reservation

    return Reservation(scope, key, "", "")


@pytest.mark.parametrize(
    "options",
    [{"conflict": 400}, {"lease": "10ms"}, {"lease": "2d"}, {"lease": "soon"}, {"max_lock": "10m", "retention": "9m"}],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        guard(Unreachable(), Shop(), **options)


def test_records_come_from_the_app_or_from_elsewhere_never_from_both() -> None:
    with pytest.raises(ConfigurationError, match="hf="):
        IdempotencyMiddleware(Shop(), scope=lambda request: "t")


async def test_a_stream_that_is_no_request_passes(sql_place: RecordStore) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    middleware = IdempotencyMiddleware(app, records=sql_place.records, scope=lambda request: "t")
    for kind in ("lifespan", "websocket"):
        await middleware({"type": kind}, None, None)  # type: ignore[arg-type]
    assert seen == ["lifespan", "websocket"]
