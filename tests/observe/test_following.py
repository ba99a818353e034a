"""One user action is followed by its request id alone: route, message, handler, database write, runs and audit."""

from typing import Any

import httpx2
import structlog
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from holdfast import Context, Filter, Holdfast, RequestIdMiddleware, RetryPolicy, TerminalError, correlate
from holdfast.core.delivery import Status
from tests.support.apps import MakeApp
from tests.support.worker import Log, drain, logged

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def shop(hf: Holdfast, **given: Any) -> Any:
    """An application with one route, and what follows from it."""
    log = structlog.get_logger("shop")
    well: list[bool] = []

    @hf.consumer("order.placed", name="billing", queue="payments", retry=RetryPolicy.none())
    async def billing(ctx: Context, payload: dict[str, Any]) -> None:
        log.info("charging")
        if not well:
            well.append(True)
            raise TerminalError("card declined")
        await ctx.publish("order.billed", {}, conn=None)

    @hf.consumer("order.billed", name="mail")
    def mail(ctx: Context, payload: dict[str, Any]) -> None:
        log.info("mailing")

    async def place(request: Request) -> JSONResponse:
        log.info("placing")
        published = await hf.publish("order.placed", {"n": 1}, conn=None, key="order:1")
        return JSONResponse({"id": str(published.id)})

    return RequestIdMiddleware(Starlette(routes=[Route("/orders", place, methods=["POST"])]), **given)


async def post(app: Any, **headers: str) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://shop") as client:
        return await client.post("/orders", headers={name.replace("_", "-"): value for name, value in headers.items()})


async def test_one_user_action_is_followed_by_its_request_id_alone(make_app: MakeApp, log: Log) -> None:
    hf = make_app()
    app = shop(hf)
    answer = await post(app, x_request_id="r-42", traceparent=TRACE)
    assert answer.headers["x-request-id"] == "r-42"
    await drain(hf)
    (dead,) = logged(log, "dead letter")
    with correlate(request_id="r-ops"):
        await hf.ops.replay([dead["dlq_id"]], actor="ada", reason="card renewed")
    await drain(hf)

    lines = [line for line in log if line.get("request_id") == "r-42"]
    assert [line["event"] for line in lines] == ["placing", "charging", "dead letter", "charging", "mailing"]
    assert {line["trace_id"] for line in lines} == {"0af7651916cd43dd8448eb211c80319c"}
    charging = lines[1]
    known = {"event_id": answer.json()["id"], "event_type": "order.placed", "source": "app", "consumer": "billing"}
    assert {name: charging[name] for name in known} == known
    assert (charging["queue"], charging["attempt"]) == ("payments", 1)
    expected = {
        "operation": "billing",
        "change": "dead_letter",
        "retryable": False,
        "attempt": 1,
        "max_attempts": 1,
        "queue": "payments",
    }
    assert {name: dead[name] for name in expected} == expected
    assert dead["idempotency_key"] == "order:1"
    assert dead["latency_ms"] >= 0
    assert "card declined" in dead["stack_trace"]

    trail = await hf.ops.trace_request("r-42")
    assert [step.message.type for step in trail.steps] == ["order.placed", "order.billed"]
    (billing,), (mail,) = (step.deliveries for step in trail.steps)
    assert [run.error for run in billing.runs] == ["card declined"]
    assert billing.listed.delivery.status == mail.listed.delivery.status == "delivered"
    assert {(entry.action, entry.actor, entry.request_id) for entry in billing.audit} == {("replay", "ada", "r-ops")}
    acted = await hf.ops.trace_request("r-ops")
    assert {(entry.action, entry.reason) for entry in acted.audit} == {("replay", "card renewed")}
    assert {entry.kind for entry in acted.audit} == {"delivery", "plan"}


async def test_every_act_of_an_operator_says_in_which_request_it_was_done(make_app: MakeApp) -> None:
    hf = make_app()
    shop(hf)
    await hf.publish_many([("order.placed", {}), ("order.placed", {})], conn=None)
    await drain(hf)
    await hf.publish("order.placed", {}, conn=None)
    (dead,) = await hf.ops.deliveries(Filter(dead=True))
    (pending,) = await hf.ops.deliveries(Filter(statuses=(Status.PENDING,)))
    with correlate(request_id="r-ops"):
        await hf.ops.discard([dead.delivery.id], actor="ada")
        await hf.ops.cancel([pending.delivery.id], actor="ada")
        await hf.ops.pause_queue("payments", actor="ada")
    await hf.ops.resume_queue("payments", actor="ada")
    entries = await hf.ops.audit()
    assert {(entry.action, entry.request_id) for entry in entries} == {
        ("discard", "r-ops"),
        ("cancel", "r-ops"),
        ("pause", "r-ops"),
        ("resume", None),
    }


async def test_an_id_that_is_none_or_is_not_trusted_is_replaced(make_app: MakeApp) -> None:
    for given, trust in (("x" * 200, True), ("a b", True), ("", True), ("r-1", False)):
        answer = await post(shop(make_app(), trust=trust), x_request_id=given)
        assert len(answer.headers["x-request-id"]) == 32


async def test_what_a_service_answered_is_in_the_line(make_app: MakeApp, log: Log) -> None:
    hf = make_app()

    @hf.job(retry=RetryPolicy.none())
    async def call() -> None:
        raise _Answered(503)

    await call.enqueue()
    await drain(hf)
    (line,) = logged(log, "dead letter")
    assert line["http_status"] == 503


class _Answered(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("the service is out")
        self.status_code = status


async def test_many_that_are_streamed_in_carry_the_ids_too(make_app: MakeApp) -> None:
    hf = make_app()
    with correlate(request_id="r-7"):
        await hf.publish_many([("order.placed", {"n": n}) for n in range(150)], conn=None)
    assert {message.headers.get("request_id") for message in await hf.ops.messages(limit=200)} == {"r-7"}
