"""The public API as its users write it, for the type checker alone: nothing here is run.

Right calls must pass. Wrong ones carry the error they must get, and `make check` fails when one is not given any more:
unused ignores are errors.
"""

import sqlite3
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import psycopg
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker
from starlette.applications import Starlette
from starlette.requests import Request
from typing_extensions import TypedDict

import holdfast
from holdfast import (
    Attempt,
    Cancel,
    CircuitBreaker,
    CircuitOpen,
    Context,
    Holdfast,
    HoldfastError,
    IdempotencyKey,
    IdempotencyMiddleware,
    Job,
    JobHandle,
    Outage,
    Published,
    RaisesEvents,
    RequestIdMiddleware,
    RetryAfter,
    RetryBudget,
    RetryPolicy,
    Router,
    ServiceClient,
    Snooze,
    Step,
    SyncServiceClient,
    TerminalError,
    Tracing,
    Verdict,
    WorkerOptions,
    WorkflowRun,
    begin_immediate,
    collect_events,
    correlate,
    event,
    immediate,
    job_key,
    key,
    upcast,
    with_retry,
)
from holdfast.brokers import redis
from holdfast.console import Role, User, console

hf = Holdfast("sqlite:///shop.db", source="shop", generation=2, keep="7d", dead_on=(LookupError,))
Holdfast()
Holdfast("sqlite:///shop.db", validate=False)
Holdfast(dsn=7)  # type: ignore[arg-type]
Holdfast("sqlite:///shop.db", "shop")  # type: ignore[call-arg]
Holdfast("sqlite:///shop.db", dead_on=LookupError)  # type: ignore[arg-type]
holdfast.Holdfats  # type: ignore[attr-defined]  # noqa: B018


@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int
    email: str


@event("order.paid", version=2)
class OrderPaid(BaseModel):
    order_id: int


@event("order.lost")
class OrderLost(TypedDict):
    order_id: int


@upcast(OrderPaid, from_version=1)
def add_id(old: dict[str, object]) -> dict[str, object]:
    return {"order_id": old["id"]}


@upcast(OrderPaid, from_version=1)  # type: ignore[arg-type]
def wrong_upcast(old: int) -> dict[str, object]:
    return {}


event("order.placed", version="2")  # type: ignore[arg-type]
event("order.placed")(print)  # type: ignore[type-var]
# The decorator leaves the class as it is.
assert_type(OrderPlaced(1, "ada@example.com").email, str)
OrderPlaced("1", "ada@example.com")  # type: ignore[arg-type]


@hf.consumer(OrderPlaced, name="billing", queue="payments", dead_on=(LookupError,), timeout="30s", priority=0)
async def charge(ctx: Context, order: OrderPlaced) -> None:
    assert_type(ctx.attempt, int)
    assert_type(ctx.message_id, UUID)
    async with AsyncSession() as session:
        await ctx.complete(conn=session)
        await ctx.publish(OrderPaid(order_id=order.order_id), conn=session)
    await ctx.complete()  # type: ignore[call-arg]


@hf.consumer("order.*", retry=RetryPolicy.exponential(attempts=8), start="now")
def audit(payload: dict[str, object]) -> None: ...


def empty_totals(conn: psycopg.Connection) -> None: ...


@hf.projector(OrderPlaced, name="totals", reset=empty_totals, swap=empty_totals)
def totals(ctx: Context, order: OrderPlaced) -> None:
    assert_type(ctx.rebuilding, bool)


@hf.projector(OrderPlaced, start="now")  # type: ignore[call-arg]
def not_from_now(order: OrderPlaced) -> None: ...


async def rebuilding() -> None:
    (done,) = await hf.projectors.rebuild("totals", actor="ada", skip=[UUID(int=1)], progress=print)
    assert_type(done.applied, int)
    hf.projectors.sync.rebuild("totals")  # type: ignore[call-arg]
    for state in await hf.ops.projectors():
        assert_type(state.position, int)
    waiting = await hf.ops.pending("mail", consumer="send_receipt", most=100)
    assert_type(waiting.or_more, bool)
    assert_type(hf.ops.sync.pending("mail") > 5, bool)


@hf.reaction(OrderPlaced)
def see(order: OrderPlaced) -> None: ...


@hf.consumer(OrderPlaced, source=redis.stream("payments", group="shop"), direct=True, concurrency=1)
async def from_a_stream(ctx: Context, order: OrderPlaced) -> None: ...


@hf.consumer(OrderPlaced, source=redis.stream("a", group="b"), dead_letters=redis.stream("a.dead"), origin="eu")
def with_copies(order: OrderPlaced) -> None: ...


@hf.consumer(OrderPlaced, source="redis:payments")  # type: ignore[arg-type]
def from_a_name(order: OrderPlaced) -> None: ...


@hf.consumer(OrderLost)
def lost(order: OrderLost) -> None: ...


@hf.consumer(OrderPlaced, retries=3)  # type: ignore[call-arg]
def unknown_option(order: OrderPlaced) -> None: ...


@hf.consumer(OrderPlaced, retry=3)  # type: ignore[arg-type]
def wrong_option(order: OrderPlaced) -> None: ...


# A handler stays an ordinary function, so that a unit test just calls it.
audit({"order_id": 1})
see(OrderPlaced(1, "ada@example.com"))
audit("order 1")  # type: ignore[arg-type]


@hf.job(queue="mail", retry=RetryPolicy.schedule([0, 1, 2]))
async def send_welcome(user_id: str, *, template: str = "std") -> None: ...


@hf.job()
def add(a: int, b: int) -> int:
    return a + b


@hf.job()
def resize(ctx: Context, image: str, *, width: int) -> None:
    ctx.sync.complete(conn="default")


@hf.command(key="order:{user_id}:{order_id}:cancel:v1")
def cancel_order(user_id: str, order_id: int) -> None: ...


@hf.cron("0 7 * * *", tz="Europe/Berlin", missed="last")
async def report() -> None: ...


hf.command()  # type: ignore[call-arg]
# Decorators without their parentheses.
hf.consumer(wrong_option)  # type: ignore[arg-type]
hf.reaction(wrong_option)  # type: ignore[arg-type]
hf.job(wrong_option)  # type: ignore[arg-type]
hf.cron(wrong_option)  # type: ignore[arg-type]
hf.command(wrong_option, key="{order}")  # type: ignore[arg-type]


def unit_test(ctx: Context) -> None:
    # Who calls the function itself passes the context, who enqueues it does not.
    resize(ctx, "a.png", width=7)
    resize("a.png", width=7)  # type: ignore[call-arg, arg-type]


def blocking(conn: sqlite3.Connection, session: Session, pg: psycopg.Connection) -> None:
    assert_type(hf.sync.publish(OrderPlaced(1, "a"), conn=conn), Published)
    hf.sync.publish("order.placed", {"order_id": 1}, conn=session, key="order:1:placed:v1", headers={"tenant": "acme"})
    hf.sync.publish(OrderLost, OrderLost(order_id=1), conn=pg, occurred_at=datetime.now(UTC))
    hf.sync.publish(OrderPlaced(1, "a"), conn=None)
    hf.sync.publish(OrderPlaced(1, "a"), conn=None, retry=RetryPolicy.none(), validate=False)
    hf.sync.publish_many([OrderPlaced(1, "a")], conn=None, retry=RetryPolicy.none(), validate=False)
    hf.sync.publish(OrderPlaced(1, "a"), conn=None, retry=3)  # type: ignore[arg-type]
    hf.sync.publish(OrderPlaced(1, "a"), conn="default")
    assert_type(hf.sync.publish_many([OrderPlaced(1, "a"), ("order.placed", {})], conn=conn), list[Published])
    hf.sync.publish(OrderPlaced(1, "a"))  # type: ignore[call-arg]
    hf.sync.publish(OrderPlaced(1, "a"), conn)  # type: ignore[call-arg]
    hf.sync.publish(OrderPlaced(1, "a"), conn=conn, key=7)  # type: ignore[arg-type]
    hf.sync.publish_many([OrderPlaced(1, "a")])  # type: ignore[call-arg]
    assert_type(hf.webhooks.sync.add("https://acme.test/in", events=["order.*"], tenant="acme", conn=conn).secret, str)
    hf.webhooks.sync.add("https://acme.test/in", events=["order.*"])  # type: ignore[call-arg]
    hf.webhooks.sync.add("https://acme.test/in", events=["order.*"], conn=conn, rate=[90])  # type: ignore[arg-type]
    hf.sync.publish_many(OrderPlaced(1, "a"), conn=conn)  # type: ignore[arg-type]
    # The wrong colour leaves a coroutine that is not awaited.
    hf.publish(OrderPlaced(1, "a"), conn=conn)  # type: ignore[unused-coroutine]
    assert_type(hf.sync.publish(OrderPlaced(1, "a"), conn=conn).id, UUID)

    assert_type(add.sync.enqueue(1, 2), JobHandle)
    assert_type(add.sync.enqueue_many([(1, 2), {"a": 1, "b": 2}]), list[JobHandle])
    assert_type(add(1, 2), int)
    add.sync.enqueue(1, "2")  # type: ignore[arg-type]
    add.sync.enqueue(1)  # type: ignore[call-arg]
    cancel_order.using(conn=session).sync.enqueue("u_1", order_id=7)
    cancel_order.using(conn=session).sync.enqueue("u_1", order="7")  # type: ignore[call-arg]

    with immediate(conn) as same:
        assert_type(same, sqlite3.Connection)
    with immediate(pg):  # type: ignore[arg-type]
        pass
    with correlate(request_id="r-1", user_id=7):
        pass
    hf.run(until_idle=True)
    hf.run(True)  # type: ignore[call-arg]


async def awaiting(session: AsyncSession, pg: psycopg.AsyncConnection) -> None:
    assert_type(await hf.publish(OrderPlaced(1, "a"), conn=session, key="order:1:placed:v1"), Published)
    assert_type(await hf.publish_many([OrderPlaced(1, "a")], conn=pg), list[Published])
    await hf.publish(OrderPlaced(1, "a"))  # type: ignore[call-arg]
    await hf.sync.publish(OrderPlaced(1, "a"), conn=None)  # type: ignore[misc]

    assert_type(await send_welcome.enqueue("u_1"), JobHandle)
    await send_welcome.using(conn=session, delay="5m").enqueue("u_1", template="first")
    await send_welcome.using(delay=timedelta(minutes=5), priority=0, unique="u_1").enqueue("u_1")
    await send_welcome.enqueue(1)  # type: ignore[arg-type]
    await send_welcome.enqueue("u_1", "first")  # type: ignore[call-arg]
    await send_welcome.enqueue("u_1", template=1)  # type: ignore[arg-type]
    await send_welcome.enqueue("u_1", colour="red")  # type: ignore[call-arg]
    await send_welcome.enqueue()  # type: ignore[call-arg]
    await send_welcome.using(later="5m").enqueue("u_1")  # type: ignore[call-arg]
    await resize.enqueue("a.png", width=7)
    await resize.enqueue("a.png", width="7")  # type: ignore[arg-type]
    await report.enqueue()
    await report.enqueue(1)  # type: ignore[call-arg]
    await hf.work(WorkerOptions())


router = Router()


@router.job()
def shrink(image: bytes) -> bytes:
    return image


hf.include(router)
hf.include(hf.sync)  # type: ignore[arg-type]
a_job: Job[[int, int], int] = add
another: Job[[str], int] = add  # type: ignore[assignment]


def handler(order: OrderPlaced) -> Snooze | None:
    match order.order_id:
        case 1:
            raise TerminalError("no such customer")
        case 2:
            raise RetryAfter("5m", "busy")
        case 3:
            raise Cancel("out of stock")
        case 4:
            raise Outage("mail")
        case 5:
            raise CircuitOpen("acme", timedelta(minutes=5))
        case 6:
            raise RetryAfter(reason="busy")  # type: ignore[call-arg]
    return Snooze(90)


def classify(error: BaseException) -> Verdict | None:
    return None


Holdfast(classify=classify)
RetryPolicy.polynomial(attempts=3, power=2)
RetryPolicy.fixed("5s", attempts=3)
RetryPolicy.none()
RetryPolicy.exponential(retries=3)  # type: ignore[call-arg]
RetryPolicy.exponential(attempts="3")  # type: ignore[arg-type]

assert_type(key("shop", "u_1", "order", "place", "v1"), str)
assert_type(job_key("17", "send", "mail"), str)


class Order(RaisesEvents):
    def ship(self) -> None:
        self.raise_event(OrderPlaced(1, "a"))
        self.raise_event("order.shipped", {"order_id": 1}, key="order:1:shipped:v1")
        self.raise_event(lambda: OrderPlaced(1, "a"), key=lambda: "order:1:placed:v1")
        self.raise_event()  # type: ignore[call-arg]
        self.raise_event("order.shipped", key=1)  # type: ignore[arg-type]


async def application(scope: MutableMapping[str, Any], receive: Any, send: Any) -> None: ...


engine, async_engine = create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")
collect_events(hf, sessionmaker(engine))
collect_events(hf, async_sessionmaker(async_engine))
collect_events(hf, engine)  # type: ignore[arg-type]
collect_events(sessionmaker(engine), hf)  # type: ignore[arg-type]
begin_immediate(engine)
begin_immediate(async_engine)
begin_immediate(sessionmaker(engine))  # type: ignore[arg-type]

IdempotencyMiddleware(
    application, hf=hf, scope=lambda request: "ada", lease="5s", cached_statuses=range(200, 500), required=True
)
IdempotencyMiddleware(application, hf=hf)  # type: ignore[call-arg]
IdempotencyMiddleware(application, hf=hf, scope="ada")  # type: ignore[arg-type]
IdempotencyMiddleware(application, hf=hf, scope=str, lease=[])  # type: ignore[arg-type]
IdempotencyMiddleware(application, hf=hf, scope=str, leese="5s")  # type: ignore[call-arg]


async def create(body: OrderPaid, idem: IdempotencyKey, session: AsyncSession) -> OrderPaid:
    assert_type(idem.key, str | None)
    assert_type(idem.sync.complete(body, status=201, conn=session), OrderPaid)
    await idem.complete(body)  # type: ignore[call-arg]
    await idem.complete(body, status="201", conn=session)  # type: ignore[arg-type]
    return await idem.complete(body, status=201, conn=session)


try:
    pass
except HoldfastError as error:
    assert_type(error, HoldfastError)


class Invoice(BaseModel):
    id: int


@with_retry("charge", policy=RetryPolicy.fixed(1), idempotency_key=lambda order: f"order:{order}")
async def pay(attempt: Attempt, order: int, *, note: str = "") -> float:
    return 1.0


@with_retry.sync("charge", timeout="5s", deadline=30, budget=RetryBudget(), breaker=CircuitBreaker("gateway"))
def pay_blocking(order: int) -> float:
    return 1.0


async def calling_out(billing: ServiceClient, blocking: SyncServiceClient) -> None:
    assert_type(await pay(7, note="n"), float)
    await pay("7")  # type: ignore[arg-type]
    assert_type(pay_blocking(7), float)
    pay_blocking(order="7")  # type: ignore[arg-type]
    assert_type(await with_retry("charge", lambda: pay(7)), float)
    assert_type(with_retry.sync("charge", lambda: pay_blocking(7)), float)
    with_retry.sync("charge", lambda: 1, retries=3)  # type: ignore[call-overload]
    assert_type(await billing.get("/i/1", returns=Invoice), Invoice)
    assert_type(await billing.post("/i", json={}, returns=Invoice, conflict_ok=True), Invoice | None)
    assert_type((await billing.get("/i/1", params={"page": 2})).status, int)
    assert_type(blocking.get("/i/1", returns=Invoice), Invoice)
    assert_type(blocking.put("/i", content=b"x", idempotency_key="k").body, bytes)
    blocking.get("/i/1", retries=3)  # type: ignore[call-overload]
    ServiceClient("https://billing.example", token="t", timeout="5s", budget=False)
    ServiceClient("https://billing.example", tokens="t")  # type: ignore[call-arg]
    async with hf.breaker("smtp", threshold=5, rate=0.5).guard() as permit:
        assert_type(permit.remaining, float | None)
    assert_type(await hf.breaker("smtp").call(pay, 7), float)
    hf.breaker("smtp", treshold=5)  # type: ignore[call-arg]


async def staff(request: Request) -> tuple[str, str] | None:
    return ("ada", "operator")


def mounted() -> None:
    assert_type(console(hf, actor=staff), Starlette)
    console(hf, actor=lambda request: User("ada", Role.ADMIN), read_only=True, hosts=["ops.shop.example"])
    console(hf)  # type: ignore[call-arg]
    console(hf, actor=lambda request: 42)  # type: ignore[arg-type,return-value]


observed = Holdfast("sqlite:///shop.db", redact=["**.password"], tracing=Tracing(links=True))
Holdfast("sqlite:///shop.db", redact=[7])  # type: ignore[list-item]


@event("card.charged", redact=["card.number"])
class CardCharged(BaseModel):
    """An event with a secret."""


assert_type(RequestIdMiddleware(lambda scope, receive, send: None, trust=False), RequestIdMiddleware)  # type: ignore[arg-type, return-value]


async def relayed() -> None:
    hf.relay("order.*", OrderPlaced, to=redis.stream("orders"), name="out", key=lambda event: event.key)
    hf.relay("order.*", to=redis.stream("orders"))  # type: ignore[call-arg]
    hf.relay("order.*", to="orders", name="out")  # type: ignore[arg-type]
    hf.ingest(redis.stream("orders", group="shop"), as_=OrderPlaced, key="header:dedupe-key")
    hf.ingest(redis.stream("orders", group="shop"), as_="order.placed", key=lambda order: order["id"], name="in")
    hf.ingest(redis.stream("orders", group="shop"))  # type: ignore[call-arg]
    hf.ingest("orders", as_=OrderPlaced)  # type: ignore[arg-type]
    page = await hf.events.read(["order.*"], limit=10)
    assert_type(hf.events.sync.read(after=page.cursor).more, bool)
    assert_type([event.id async for page in hf.events.pages() for event in page.events], list[UUID])


@hf.workflow("trial")
async def trial(ctx: Step, days: int, *, plan: str = "basic") -> int:
    waited = await ctx.wait("approved", OrderPlaced, timeout="3d")
    assert_type(waited, OrderPlaced | None)
    assert_type(await ctx.wait("approved", OrderPlaced), OrderPlaced)
    assert_type(await ctx.step("length", len, plan), int)
    await ctx.step("length", len, 3)  # type: ignore[call-overload]
    assert_type(ctx.key, str)
    return days


shipping = hf.workflow("shipping", version=2, compatible_with=(1,))


@shipping.step
async def pack(ctx: Step, order: int) -> str:
    return str(order)


@shipping.step(after=pack, exhausted="block", timeout="30s")
def ship(pack: str) -> None: ...


async def workflows() -> None:
    assert_type(await pack(Any, 3), str)  # type: ignore[arg-type]
    run = await trial.start(3, plan="large")
    assert_type(run, WorkflowRun)
    await trial.using(key="t", conn=None).start("three")  # type: ignore[arg-type]
    await shipping.using(key="s").start(3)
    await run.signal("approved", key="k")
    await run.retry(from_="main")
