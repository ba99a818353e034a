"""FastAPI, Starlette, Flask and Django: the key in a handler's hands, and an answer that commits with the effect."""

import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import httpx2
import psycopg
import pytest
import sqlalchemy as sa
from fastapi import BackgroundTasks, Depends, FastAPI
from flask import Flask, g
from flask import request as flask_request
from pydantic import BaseModel, Field
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import NullPool
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route

from holdfast import (
    ConfigurationError,
    Context,
    Holdfast,
    IdempotencyKey,
    IdempotencyMiddleware,
    ReservationLost,
    WorkerOptions,
    correlate,
)
from holdfast.idempotency.flask import idempotent
from tests.idempotency.record_stores import RecordStore
from tests.idempotency.test_asgi import code


class NewOrder(BaseModel):
    amount: int


class OrderOut(BaseModel):
    id: int
    note: str = Field(default="é", serialization_alias="remark")


class Database:
    """A table of the application, next to those of Holdfast."""

    def __init__(self, place: RecordStore) -> None:
        assert place.hf is not None
        self.place, self.hf = place, place.hf
        place.sql("drop table if exists orders")
        place.sql("create table orders (id integer)")
        scheme = "sqlite+aiosqlite" if place.kind == "sqlite" else "postgresql+asyncpg"
        self.engine = create_async_engine(place.dsn.replace(place.dsn.partition(":")[0], scheme, 1), poolclass=NullPool)

    def orders(self) -> int:
        return int(self.place.sql("select count(*) from orders")[0][0])

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[AsyncSession]:
        async with AsyncSession(self.engine) as session, session.begin():
            yield session


@pytest.fixture
def db(sql_place: RecordStore) -> Database:
    return Database(sql_place)


@contextlib.contextmanager
def blocking(db: Database) -> Iterator[Any]:
    """A driver's own connection, in a transaction."""
    if db.place.kind == "sqlite":
        with contextlib.closing(sqlite3.connect(db.place.dsn.removeprefix("sqlite:///"))) as conn, conn:
            yield conn
    else:
        with psycopg.connect(db.place.dsn) as connection:
            yield connection


def user(request: Any) -> str | None:
    found: str | None = request.headers.get("x-user")
    return found


def client_of(app: Any) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://shop", headers={"x-user": "ada"})


def fastapi_shop(db: Database, handler: Callable[..., Any], **options: Any) -> httpx2.AsyncClient:
    api = FastAPI()
    api.add_middleware(IdempotencyMiddleware, hf=db.hf, scope=user, **options)
    api.post("/orders", status_code=201, response_model=None)(handler)
    return client_of(api)


async def order(client: httpx2.AsyncClient, key: str | None = "k", amount: int = 5) -> httpx2.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client.post("/orders", json={"amount": amount}, headers=headers)


async def test_fastapi_completes_in_the_business_transaction(db: Database) -> None:
    async def create(body: NewOrder, idem: IdempotencyKey) -> OrderOut:
        async with db.session() as s:
            await s.execute(sa.text(f"insert into orders values ({body.amount})"))
            await db.hf.publish("order.placed", {"amount": body.amount}, conn=s)
            return await idem.complete(OrderOut(id=7), status=201, conn=s)

    client = fastapi_shop(db, create)
    first, again = await order(client), await order(client)
    assert first.status_code == again.status_code == 201
    assert first.content == again.content == '{"id":7,"remark":"é"}'.encode()
    assert again.headers["idempotent-replayed"] == "true"
    assert db.orders() == 1
    assert len(db.place.sql("select id from {hf}message")) == 1
    assert (await order(client, amount=6)).status_code == 409


async def test_a_route_and_a_job_with_one_command_key_run_it_once(db: Database) -> None:
    """A route enqueues, in its transaction, and so does a job: the command's key is the same, and it runs once."""
    runs: list[tuple[int, dict[str, str]]] = []

    @db.hf.command(key="order:{order_id}:cancel:v1")
    async def cancel(ctx: Context, order_id: int) -> None:
        runs.append((order_id, dict(ctx.headers)))

    @db.hf.job()
    async def tidy(order_id: int) -> None:
        await cancel.enqueue(order_id)

    async def create(body: NewOrder, idem: IdempotencyKey) -> dict[str, str]:
        async with db.session() as s:
            await cancel.using(conn=s).enqueue(body.amount)
            return await idem.complete({"status": "accepted"}, status=202, conn=s)

    client = fastapi_shop(db, create)
    with correlate(request_id="r-1"):
        answers = [await order(client), await order(client), await order(client, "another-key")]
    assert [one.status_code for one in answers] == [202] * 3
    assert runs == []  # a route never carries a command out
    await tidy.enqueue(5)
    await db.hf.work(WorkerOptions(until_idle=True))
    assert runs == [(5, {"request_id": "r-1", "idempotency_key": "k"})]


async def test_the_first_answer_and_its_repetitions_agree_for_any_route_settings(db: Database) -> None:
    """The route has status 201, `complete` has none: the stored response is sent, also to the first client."""

    async def create(body: NewOrder, idem: IdempotencyKey) -> dict[str, int]:
        async with db.session() as s:
            return await idem.complete({"b": 1, "a": 2}, conn=s)

    client = fastapi_shop(db, create)
    first, again = await order(client), await order(client)
    assert (first.status_code, first.content) == (again.status_code, again.content) == (200, b'{"a":2,"b":1}')


async def test_an_error_that_is_kept_on_purpose_is_what_the_first_client_gets_too(db: Database) -> None:
    async def create(body: NewOrder, idem: IdempotencyKey) -> dict[str, str]:
        async with db.session() as s:
            return await idem.complete({"error": "declined"}, status=402, conn=s)

    client = fastapi_shop(db, create)
    first, again = await order(client), await order(client)
    assert (first.status_code, first.content) == (again.status_code, again.content) == (402, b'{"error":"declined"}')


async def test_a_route_that_asks_for_a_key_refuses_a_request_without_one(db: Database) -> None:
    runs = []

    async def create(body: NewOrder, idem: IdempotencyKey) -> None:
        runs.append(1)

    client = fastapi_shop(db, create)
    refused = await order(client, None)
    assert (refused.status_code, code(refused)) == (400, "idempotency-key-missing")
    assert runs == []
    description = (await client.get("/openapi.json")).json()["paths"]["/orders"]["post"]["parameters"]
    assert [(one["name"], one["in"]) for one in description] == [("idempotency-key", "header")]


async def test_a_route_that_no_middleware_guards_says_so(db: Database) -> None:
    api = FastAPI()

    @api.post("/orders")
    async def create(idem: IdempotencyKey) -> None: ...

    transport = httpx2.ASGITransport(api)
    async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as client:
        with pytest.raises(ConfigurationError, match="POST /orders"):
            await client.post("/orders", headers={"Idempotency-Key": "k"})


async def test_after_a_validation_error_a_corrected_request_needs_a_new_key(db: Database) -> None:
    async def create(body: NewOrder, idem: IdempotencyKey) -> str:
        return "fine"

    client = fastapi_shop(db, create)
    bad = await client.post("/orders", json={"amount": "many"}, headers={"Idempotency-Key": "k"})
    assert bad.status_code == 422
    assert (await order(client)).status_code == 409
    assert (await order(client, "another-key")).status_code == 201


async def test_a_plain_function_completes_with_the_blocking_twin(db: Database) -> None:
    def create(body: NewOrder, idem: IdempotencyKey) -> OrderOut:
        with blocking(db) as conn:
            conn.execute("insert into orders values (1)")
            return idem.sync.complete(OrderOut(id=1), status=201, conn=conn)

    client = fastapi_shop(db, create)
    assert [(await order(client)).content for _ in range(2)] == ['{"id":1,"remark":"é"}'.encode()] * 2
    assert db.orders() == 1


async def test_a_session_that_commits_after_the_route_is_waited_for(db: Database) -> None:
    """FastAPI ends what a dependency began after the answer was sent; the answer is held back until it is committed."""

    async def session() -> AsyncIterator[AsyncSession]:
        async with db.session() as s:
            yield s

    async def create(body: NewOrder, idem: IdempotencyKey, s: AsyncSession = Depends(session)) -> Any:  # noqa: B008
        await s.execute(sa.text("insert into orders values (1)"))
        return await idem.complete({"id": 1}, status=201, conn=s)

    client = fastapi_shop(db, create)
    first, again = await order(client), await order(client)
    assert (first.status_code, first.content) == (again.status_code, again.content) == (201, b'{"id":1}')
    assert db.orders() == 1


async def test_an_answer_whose_transaction_rolled_back_is_not_sent(db: Database) -> None:
    outcomes = iter([False, True])

    async def create(body: NewOrder, idem: IdempotencyKey) -> Any:
        async with AsyncSession(db.engine) as s:
            await s.execute(sa.text("insert into orders values (1)"))
            await idem.complete({"id": 1}, status=201, conn=s)
            await (s.commit() if next(outcomes) else s.rollback())
        return {"id": 1}

    client = fastapi_shop(db, create)
    refused = await order(client)
    assert (refused.status_code, code(refused)) == (500, "idempotent-request-not-committed")
    assert db.orders() == 0
    assert (await order(client)).status_code == 201
    assert db.orders() == 1


async def test_an_error_after_completing_and_rolling_back_releases_the_key(db: Database) -> None:
    fails = iter([True, False])

    async def create(body: NewOrder, idem: IdempotencyKey) -> Any:
        async with db.session() as s:
            await s.execute(sa.text("insert into orders values (1)"))
            await idem.complete({"id": 1}, status=201, conn=s)
            if next(fails):
                raise RuntimeError("boom")
        return {"id": 1}

    client = fastapi_shop(db, create)
    assert (await order(client)).status_code == 500
    assert (await order(client)).status_code == 201
    assert db.orders() == 1


@pytest.mark.parametrize("swallowed", [None, 200, 500])
async def test_a_late_finishers_effect_is_undone_and_its_client_gets_the_answer_that_counts(
    db: Database, swallowed: int | None
) -> None:
    async def create(body: NewOrder, idem: IdempotencyKey) -> Any:
        if not takeovers:
            takeovers.append(1)
            db.place.pass_time(timedelta(seconds=11))
            assert (await order(client)).json() == {"run": 2}
        try:
            async with db.session() as s:
                await s.execute(sa.text("insert into orders values (1)"))
                return await idem.complete({"run": 2}, status=201, conn=s)
        except ReservationLost:
            if swallowed is None:
                raise
            return JSONResponse({"run": 1}, swallowed)

    takeovers: list[int] = []
    client = fastapi_shop(db, create)
    late = await order(client)
    assert (late.status_code, late.json()) == (201, {"run": 2})
    assert late.headers["idempotent-replayed"] == "true"
    assert db.orders() == 1


async def test_work_in_the_background_does_not_hold_an_answer_back_that_was_completed(db: Database) -> None:
    happened: list[str] = []

    async def create(background: BackgroundTasks, idem: IdempotencyKey) -> str:
        background.add_task(happened.append, "mailed")
        return await idem.complete("fine", conn=None)

    api = FastAPI()
    api.add_middleware(IdempotencyMiddleware, hf=db.hf, scope=user)
    api.post("/orders", response_model=None)(create)

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        async def seen(message: Any) -> None:
            happened.append(message["type"])
            await send(message)

        await api(scope, receive, seen)

    client = client_of(watched)
    sent = ["http.response.start", "http.response.body"]
    assert (await order(client)).text == (await order(client)).text == "fine"
    assert happened == [*sent, "mailed", *sent]


async def test_an_answer_is_stored_after_a_session_that_commits_when_the_route_is_done(db: Database) -> None:
    """Before the commit there is no effect yet, and SQLite has but one writer."""
    fails = iter([True, False])

    async def session() -> AsyncIterator[AsyncSession]:
        async with db.session() as s:
            yield s
            if next(fails):
                raise RuntimeError("no commit")

    async def create(body: NewOrder, s: AsyncSession = Depends(session)) -> Any:  # noqa: B008
        await s.execute(sa.text("insert into orders values (1)"))
        return {"id": 1}

    client = fastapi_shop(db, create)
    assert [(await order(client)).status_code for _ in range(3)] == [500, 201, 201]
    assert db.orders() == 1


async def test_starlette_finds_the_key_in_the_requests_state(db: Database) -> None:
    async def create(request: Request) -> JSONResponse:
        idem = request.state.idempotency
        async with db.session() as s:
            await s.execute(sa.text("insert into orders values (1)"))
            answer = JSONResponse({"key": idem.key, "scope": idem.scope}, 201, {"x-a": "1", "set-cookie": "a=1"})
            return await idem.complete(answer, conn=s)

    async def stream(request: Request) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            for piece in (b"a", b"b"):
                yield piece

        return StreamingResponse(pieces())

    routes = [Route("/orders", create, methods=["POST"]), Route("/stream", stream, methods=["POST"])]
    app = Starlette(routes=routes)
    app.add_middleware(IdempotencyMiddleware, hf=db.hf, scope=user)
    client = client_of(app)
    first, again = await order(client), await order(client)
    assert first.json() == again.json() == {"key": "k", "scope": "ada"}
    assert first.headers["x-a"] == again.headers["x-a"] == "1"
    assert "set-cookie" in first.headers
    assert "set-cookie" not in again.headers
    assert (await order(client, None)).json() == {"key": None, "scope": None}
    assert db.orders() == 2
    for _ in range(2):
        assert (await client.post("/stream", headers={"Idempotency-Key": "s"})).content == b"ab"


@pytest.fixture
def flask_app(db: Database) -> Flask:
    app = Flask(__name__)
    app.config["runs"] = 0

    @app.post("/orders")
    @idempotent(db.hf, scope=user)
    def create() -> Any:
        app.config["runs"] += 1
        amount = flask_request.get_json()["amount"]
        if amount < 0:
            return {"error": "negative"}, 422
        if amount == 0:
            raise RuntimeError("boom")
        with blocking(db) as conn:
            conn.execute("insert into orders values (1)")
            return g.idempotency.sync.complete({"run": app.config["runs"]}, status=201, conn=conn), 201

    return app


def test_a_flask_view_runs_once(flask_app: Flask, db: Database) -> None:
    client = flask_app.test_client()

    def call(key: str | None = "k", amount: int = 5, who: str = "ada") -> Any:
        headers = {"x-user": who, **({} if key is None else {"Idempotency-Key": key})}
        return client.post("/orders", json={"amount": amount}, headers=headers)

    first, again = call(), call()
    assert (first.status_code, first.json) == (again.status_code, again.json) == (201, {"run": 1})
    assert (again.headers["Idempotent-Replayed"], again.data) == ("true", first.data)
    assert call(amount=6).status_code == 409
    assert call(None).status_code == 400
    assert call("").status_code == 400
    assert call(who="eve").json == {"run": 2}
    assert [call("n", -1).status_code for _ in range(2)] == [422, 422]
    assert flask_app.config["runs"] == 4
    assert call("e", 0).status_code == 500
    assert call("e", 1).status_code == 409
    assert call("e", 0).status_code == 500
    assert call("f", 1).status_code == 201
    headers = {"x-user": "ada", "Idempotency-Key": "b"}
    for unbounded in ({}, {"wsgi.input_terminated": True, "CONTENT_LENGTH": ""}):
        big = client.post("/orders", data=b"x" * 2_000_000, headers=headers, environ_overrides=unbounded)
        assert (big.status_code, (big.json or {})["code"]) == (413, "idempotent-request-too-large")


def test_a_flask_answer_whose_transaction_rolled_back_is_not_sent(db: Database) -> None:
    app, outcomes = Flask(__name__), iter([False, True])

    @app.post("/orders")
    @idempotent(db.hf, scope=user)
    def create() -> Any:
        with contextlib.suppress(InterruptedError), blocking(db) as conn:
            conn.execute("insert into orders values (1)")
            g.idempotency.sync.complete({"id": 1}, status=201, conn=conn)
            if not next(outcomes):
                raise InterruptedError
        return {"id": 1}, 201

    headers = {"x-user": "ada", "Idempotency-Key": "k"}
    refused = app.test_client().post("/orders", headers=headers)
    assert refused.json is not None
    assert (refused.status_code, refused.json["code"]) == (500, "idempotent-request-not-committed")
    assert app.test_client().post("/orders", headers=headers).status_code == 201
    assert db.orders() == 1


@pytest.mark.parametrize("swallowed", [False, True])
def test_a_late_flask_view_is_undone_and_its_client_gets_the_answer_that_counts(db: Database, swallowed: bool) -> None:
    app, takeovers = Flask(__name__), list[int]()
    headers = {"x-user": "ada", "Idempotency-Key": "k"}

    @app.post("/orders")
    @idempotent(db.hf, scope=user)
    def create() -> Any:
        idem = g.idempotency
        if not takeovers:
            takeovers.append(1)
            db.place.pass_time(timedelta(seconds=11))
            assert app.test_client().post("/orders", headers=headers).json == {"run": 2}
        try:
            with blocking(db) as conn:
                conn.execute("insert into orders values (1)")
                return idem.sync.complete({"run": 2}, status=201, conn=conn), 201
        except ReservationLost:
            if not swallowed:
                raise
            return "oops", 500

    late = app.test_client().post("/orders", headers=headers)
    assert (late.status_code, late.json) == (201, {"run": 2})
    assert db.orders() == 1


def test_a_flask_view_streams_and_optional_keys_pass(db: Database) -> None:
    app, runs = Flask(__name__), []

    @app.post("/stream")
    @idempotent(db.hf, scope=user, required=False)
    def stream() -> Any:
        runs.append(g.idempotency.key)
        return (piece for piece in ("a", "b"))

    client = app.test_client()
    assert client.post("/stream", headers={"x-user": "ada"}).data == b"ab"
    assert client.post("/stream", headers={"x-user": "ada", "Idempotency-Key": "k"}).data == b"ab"
    again = client.post("/stream", headers={"x-user": "ada", "Idempotency-Key": "k"})
    assert again.json is not None
    assert (again.status_code, again.json["code"]) == (409, "idempotent-response-not-kept")
    assert runs == [None, "k"]


@pytest.fixture
def django_view(db: Database) -> Any:
    from tests.produce.place import use_django

    class Place:
        alias = f"idempotency_{db.place.kind}"
        database = "sqlite" if db.place.kind == "sqlite" else "postgres"
        dsn = db.place.dsn
        path = db.place.dsn.removeprefix("sqlite:///")

    use_django(Place())  # type: ignore[arg-type]
    return Place


def test_a_django_view_runs_once_with_its_effect(db: Database, django_view: Any) -> None:
    from django.db import connections, transaction
    from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
    from django.test import RequestFactory

    from holdfast.idempotency.django import idempotent as guarded

    runs: list[str] = []

    @guarded(db.hf, scope=user)
    def create(request: Any) -> HttpResponse:
        runs.append(request.idempotency.key)
        with transaction.atomic(using=django_view.alias), connections[django_view.alias].cursor() as cursor:
            cursor.execute("insert into orders values (1)")
            answer = JsonResponse({"run": len(runs)}, status=201)
            return request.idempotency.sync.complete(answer, conn=django_view.alias)

    @guarded(db.hf, scope=user)
    def stream(request: Any) -> StreamingHttpResponse:
        return StreamingHttpResponse(iter([b"a"]))

    def call(view: Any = create, **headers: str) -> Any:
        made = RequestFactory().post("/orders", {"a": 1}, "application/json", headers={"x-user": "ada", **headers})
        return view(made)

    try:
        first, again = call(**{"idempotency-key": "k"}), call(**{"idempotency-key": "k"})
        assert (first.status_code, first.content) == (again.status_code, again.content) == (201, b'{"run": 1}')
        assert again["Idempotent-Replayed"] == "true"
        assert call().status_code == 400
        assert (runs, db.orders()) == (["k"], 1)
        assert b"".join(call(stream, **{"idempotency-key": "s"}).streaming_content) == b"a"
        assert call(stream, **{"idempotency-key": "s"}).status_code == 409
        for size in (1_100_000, 3_000_000):
            big = RequestFactory().post("/", b"x" * size, "text/plain", headers={"x-user": "a", "idempotency-key": "b"})
            assert create(big).status_code == 413
    finally:
        connections[django_view.alias].close()


def test_a_django_views_cookies_and_templates_reach_the_client(db: Database, django_view: Any) -> None:
    from django.http import HttpResponse
    from django.template.response import SimpleTemplateResponse
    from django.test import RequestFactory

    from holdfast.idempotency.django import idempotent as guarded

    @guarded(db.hf, scope=user)
    def signs_in(request: Any) -> HttpResponse:
        answer = HttpResponse("in")
        answer.set_cookie("session", "1; 2", httponly=True, samesite="Lax")
        return request.idempotency.sync.complete(answer, conn=None)

    @guarded(db.hf, scope=user)
    def page(request: Any) -> SimpleTemplateResponse:
        class Page(SimpleTemplateResponse):  # type: ignore[misc]
            rendered_content = "page"

        return Page("page.html")

    def call(view: Any, key: str) -> Any:
        return view(RequestFactory().post("/orders\x1b\0", headers={"x-user": "ada", "idempotency-key": key}))

    first, again = call(signs_in, "k"), call(signs_in, "k")
    assert first.content == again.content == b"in"
    cookie = first.cookies["session"]
    assert (cookie.value, cookie["httponly"], cookie["samesite"], cookie["path"]) == ("1; 2", True, "Lax", "/")
    assert not again.cookies
    assert [call(page, "p").content for _ in range(2)] == [b"page"] * 2
    assert db.place.sql("select path from {hf}idempotency where key = 'k'") == [("/orders%1B%00",)]


def test_a_django_view_inside_atomic_requests_is_refused(db: Database, django_view: Any) -> None:
    from django.db import connections, transaction
    from django.test import RequestFactory

    from holdfast.idempotency.django import idempotent as guarded

    view = guarded(db.hf, scope=user)(lambda request: None)
    settings = connections.settings[django_view.alias]
    settings["ATOMIC_REQUESTS"] = True
    try:
        with pytest.raises(ConfigurationError, match="ATOMIC_REQUESTS"):
            view(RequestFactory().post("/"))
        outside = transaction.non_atomic_requests(using=django_view.alias)(view)
        assert outside(RequestFactory().post("/")).status_code == 400
    finally:
        settings["ATOMIC_REQUESTS"] = False


def test_an_async_django_view_is_referred_to_the_middleware(db: Database, django_view: Any) -> None:
    from holdfast.idempotency.django import idempotent as guarded

    async def view(request: Any) -> None: ...

    with pytest.raises(TypeError, match="ASGI"):
        guarded(db.hf, scope=user)(view)


def test_the_app_is_not_connected_until_a_request_comes() -> None:
    IdempotencyMiddleware(FastAPI(), hf=Holdfast("postgresql://nowhere.invalid/db"), scope=user)
