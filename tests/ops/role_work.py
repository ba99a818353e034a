"""What each database role has to be able to do, as a program that only has that role's DSN."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx2
import psycopg
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast import Context, Holdfast, IdempotencyMiddleware, Limit, RetryPolicy, Step, TerminalError
from holdfast.ops.service import Operations
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.queries.query import Filter
from tests.support.worker import eventually, working

LOOPBACK = WebhookOptions(allow_http=True, allow_networks=("127.0.0.0/8",))
HOOK = "http://127.0.0.1:1/in"


def application(dsn: str) -> Holdfast:
    """A shop with everything that has tables: consumers, a job, a projector, a schedule, alerts, a circuit."""
    received: list[object] = []
    hf = Holdfast(dsn, source="shop", alerts=[received.append], webhooks=LOOPBACK, redact=["card"])

    @hf.consumer("order.placed", name="billing", retry=RetryPolicy.none())
    def billing(order: dict[str, Any]) -> None:
        if order.get("bad"):
            raise TerminalError("declined")

    @hf.consumer("order.placed", name="stock")
    async def stock(ctx: Context, order: dict[str, Any]) -> None:
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            await ctx.complete(conn=conn)
            await hf.publish("stock.reserved", {"order": order}, conn=conn)

    @hf.consumer("tenant.changed", name="sync", limit=Limit(2, by="tenant"))
    def sync(change: dict[str, Any]) -> None:
        return None

    @hf.job(name="mail")
    def mail(ctx: Context, to: str) -> None:
        ctx.sync.progress(0.5, to)

    @hf.projector("order.placed", name="totals", reset=lambda _: None)
    def totals(order: dict[str, Any]) -> None:
        return None

    @hf.cron("0 0 1 1 *", name="nightly")
    def nightly() -> None:
        return None

    flow = hf.workflow("flow")

    @flow.step
    async def approve(ctx: Step) -> str:
        return f"approved by {await ctx.wait('approved', str)}"

    hf.mail = mail  # type: ignore[attr-defined]
    hf.flow = flow  # type: ignore[attr-defined]
    return hf


async def produce(dsn: str) -> None:
    """Publishes and enqueues, alone and in the caller's transaction, and serves keyed requests."""
    hf = application(dsn)
    await hf.publish("order.placed", {"n": 1}, conn=None, key="a")
    await hf.publish("order.placed", {"n": 1}, conn=None, key="a")
    await hf.publish("order.placed", {"n": 2, "bad": True}, conn=None)
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await hf.publish("order.placed", {"n": 3}, conn=conn, key="b")
        await hf.publish_many([("order.placed", {"n": n, "bad": True}) for n in range(20)], conn=conn)
        await hf.mail.using(conn=conn, unique="ada", delay="1s").enqueue("ada")  # type: ignore[attr-defined]
        run = await hf.flow.using(conn=conn, key="f").start()  # type: ignore[attr-defined]
        await run.signal("approved", "ada", conn=conn)

    async def order(request: Request) -> Response:
        if request.headers["idempotency-key"] == "bad":
            return JSONResponse({}, 500)
        await asyncio.sleep(0.5)  # long enough for the lease to be renewed
        async with await psycopg.AsyncConnection.connect(dsn) as conn:
            return await request.state.idempotency.complete(JSONResponse({"id": 1}, 201), conn=conn)

    app = IdempotencyMiddleware(
        Starlette(routes=[Route("/", order, methods=["POST"])]), hf=hf, scope=lambda _: "ada", lease="1s"
    )
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://a") as client:
        for _ in range(2):
            answer = await client.post("/", headers={"idempotency-key": "k"})
            assert answer.status_code == 201, answer.text
        assert (await client.post("/", headers={"idempotency-key": "bad"})).status_code == 500
    await hf.close()


async def control(dsn: str) -> None:
    """Puts, pauses and removes a schedule, and cancels a job."""
    hf = application(dsn)
    mail = hf.mail  # type: ignore[attr-defined]
    await hf.schedules.put("digest", every="1d", job=mail, args={"to": "ada"}, conn=None)
    await hf.schedules.pause("digest")
    await hf.schedules.resume("digest")
    await hf.schedules.remove("digest")
    handle = await mail.using(delay="1h").enqueue("eve")
    assert await handle.progress() is None
    assert await handle.cancel(reason="mistake")
    await hf.close()


async def prepare_plan(dsn: str) -> None:
    """Leaves a plan that runs and an endpoint, for a worker to find."""
    ops = Operations(PostgresStore(dsn))
    plan = await ops.plan_replay(Filter(), limit=5, actor="ada", reason="fixed")
    await ops.start_plan(plan.id, actor="ada", reason="fixed")
    await ops.add_webhook(HOOK, events=["order.refunded"], actor="ada", options=LOOPBACK)
    await ops.store.close()


async def work(dsn: str) -> None:
    """Runs handlers to the end, executes a plan, fires schedules, delivers webhooks, and removes what is old."""
    hf = application(dsn)

    async def idle() -> bool:
        stats = await hf.ops.stats()
        return not stats.pending + stats.in_flight and len(await hf.ops.schedules()) == 1

    async with working(hf):
        await eventually(idle)
    breaker = hf.breaker("partner")
    await breaker.trip(60, "down")
    await hf.ops.advance_plans(runner="worker")
    await hf.ops.prune(timedelta(0), actor="worker")
    await hf.ops.metrics()
    await hf.close()


async def operate(dsn: str) -> None:
    """Everything the console, the API and the command line do for an admin, except schema changes and pruning."""
    ops = Operations(PostgresStore(dsn))
    dead = [one.delivery.id for one in (await ops.delivery_page(Filter(dead=True), limit=10)).items]
    await ops.replay(dead[:1], actor="ada", reason="fixed")
    await ops.discard(dead[1:2], actor="ada", reason="no use")
    plan = await ops.plan_replay(Filter(dead=True), limit=5, actor="ada", reason="fixed")
    await ops.start_plan(plan.id, actor="ada", reason="fixed")
    await ops.pause_plan(plan.id, actor="ada", reason="wait")
    await ops.resume_plan(plan.id, actor="ada", reason="go")
    await ops.advance_plans(runner="console")
    for pause, resume, name in (
        (ops.pause_queue, ops.resume_queue, "default"),
        (ops.pause_consumer, ops.resume_consumer, "billing"),
        (ops.pause_schedule, ops.resume_schedule, "nightly"),
    ):
        await pause(name, actor="ada", reason="test")
        await resume(name, actor="ada", reason="test")
    await ops.limit_consumer("sync", limit=3, actor="ada", reason="test")
    await ops.pause_key("sync", "acme", actor="ada", reason="test", force=True)
    await ops.resume_key("sync", "acme", actor="ada", reason="test")
    await ops.run_schedule("nightly", actor="ada", reason="now")
    await ops.unblock_consumer("billing", actor="ada", reason="test")
    await ops.publish("order.placed", {"n": 9}, actor="ada")
    pending = (await ops.delivery_page(Filter(consumers=("billing",)), limit=1)).items[0].delivery.id
    await ops.cancel([pending], actor="ada", reason="mistake")
    await ops.trip_breaker("partner", actor="ada", duration=60, reason="down", force=True)
    await ops.reset_breaker("partner", actor="ada", reason="up")
    added = await ops.add_webhook(HOOK, events=["order.placed"], actor="ada", options=LOOPBACK)
    await ops.disable_webhook(added.id, actor="ada", reason="test")
    await ops.enable_webhook(added.id, actor="ada", reason="test")
    await ops.rotate_webhook_secret(added.id, actor="ada")
    await ops.release_idempotency_key("ada", "k", actor="ada", reason="test", force=True)
    made = await ops.create_token("grace", scope="operate", actor="ada")
    assert await ops.recognise_token(made.secret)
    assert (await ops.tokens())[-1].last_used_at is not None
    await ops.revoke_token("grace", actor="ada", reason="test")
    await ops.catch_up("billing", actor="ada")
    await ops.retire_consumer("stock", actor="ada", reason="gone", pattern="order.placed")
    await ops.store.close()


async def read(dsn: str) -> None:
    """Everything that can be looked at."""
    ops = Operations(PostgresStore(dsn))
    assert (await ops.schema_status()).current
    await ops.stats()
    for look in (
        ops.metrics, ops.doctor, ops.queues, ops.consumers, ops.projectors, ops.relays, ops.schedules, ops.webhooks,
        ops.breakers, ops.idempotency_keys, ops.tokens, ops.workers, ops.audit, ops.plans, ops.trend, ops.retrying,
        ops.failure_groups, ops.export,
    ):  # fmt: skip
        await look()
    for one in (await ops.delivery_page(Filter(), limit=3)).items:
        await ops.delivery(one.delivery.id)
    for message in (await ops.message_page(limit=3)).items:
        await ops.message(message.id)
    await ops.store.close()
