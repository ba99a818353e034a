"""Log lines: what happened to which item, how often, when again, and the ids that tie one user action together."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import structlog

from holdfast import CircuitOpen, Context, Holdfast, Outage, RetryPolicy, Snooze, correlate
from holdfast.core.delivery import Status
from holdfast.stores.queries.query import messages
from tests.support.worker import Log, drain, logged, only, statuses


async def test_every_retry_says_what_how_often_and_when_again(hf: Holdfast, log: Log) -> None:
    @hf.job(retry=RetryPolicy.schedule(["5m"]), queue="mail")
    async def send() -> None:
        raise OSError("mail server is down")

    with correlate(request_id="r-1", user_id=7):
        published = await send.using(key="mail:1").enqueue()
    before = datetime.now(UTC)
    await drain(hf)
    (line,) = logged(log, "delivery retried")
    assert line["log_level"] == "warning"
    expected: dict[str, Any] = {
        "operation": "send",
        "change": "retry",
        "attempt": 1,
        "max_attempts": 2,
        "retryable": True,
        "next_attempt_in": 300.0,
        "event_id": str(published.id),
        "delivery_id": str((await only(hf)).id),
        "event_type": "job.send",
        "source": "app",
        "consumer": "send",
        "queue": "mail",
        "idempotency_key": "mail:1",
        "request_id": "r-1",
        "user_id": "7",
        "error": "mail server is down",
        "error_type": "OSError",
    }
    assert {name: line[name] for name in expected} == expected
    assert line["latency_ms"] >= 0
    assert 'raise OSError("mail server is down")' in line["stack_trace"]
    again = datetime.fromisoformat(line["next_attempt_at"])
    assert timedelta(minutes=4, seconds=55) < again - before < timedelta(minutes=5, seconds=20)


async def test_a_worker_logs_only_the_consumers_of_its_queues(hf: Holdfast, log: Log) -> None:
    for queue in ("mail", "reports"):
        hf.job(name=f"send_{queue}", queue=queue)(lambda: None)
    await drain(hf, queues={"mail": 1})
    await drain(hf)
    started = [line["consumers"] for line in logged(log, "worker started")]
    assert started == [["send_mail"], ["send_mail", "send_reports"]]


async def test_holds_parks_and_snoozes_say_when_again_too(hf: Holdfast, log: Log) -> None:
    opens_at = datetime.now(UTC) + timedelta(minutes=3)

    @hf.job()
    async def work(kind: str) -> None:
        raise {"park": CircuitOpen("acme", opens_at), "snooze": Snooze("2m")}[kind]

    @hf.job()
    async def write() -> None:
        raise Outage("disk")

    await write.enqueue()
    for kind in ("park", "snooze"):
        await work.enqueue(kind)
    await drain(hf, idle_limit=timedelta(0))
    (held,), (parked,), (snoozed,) = (
        logged(log, text) for text in ("delivery blocked", "delivery parked", "delivery snoozed")
    )
    assert (held["change"], held["resource"], held["held"]) == ("block", "disk", True)
    assert [line["operation"] for line in (held, parked, snoozed)] == ["write", "work", "work"]
    assert (parked["circuit"], parked["next_attempt_at"]) == ("acme", opens_at.isoformat())
    assert snoozed["next_attempt_in"] == 120.0


async def test_one_user_action_can_be_followed_through_handler_logs_and_further_messages(
    hf: Holdfast, log: Log
) -> None:
    logger = structlog.get_logger("shop")

    @hf.consumer("order.placed")
    async def billing(ctx: Context, payload: object) -> None:
        logger.info("charging")
        await ctx.publish("payment.made", {}, conn=None)

    @hf.consumer("payment.made")
    def shipping(ctx: Context, payload: object) -> None:
        logger.info("shipping")
        ctx.sync.publish("parcel.sent", {}, conn=None, headers={"carrier": "ups"})

    with correlate(request_id="r-9", trace_id="t-9"):
        order = await hf.publish("order.placed", {}, conn=None, headers={"campaign": "spring"})
    await drain(hf)
    (charging,), (sending,) = logged(log, "charging"), logged(log, "shipping")
    for line, consumer in ((charging, "billing"), (sending, "shipping")):
        assert (line["request_id"], line["trace_id"], line["consumer"], line["attempt"]) == ("r-9", "t-9", consumer, 1)
    assert charging["event_id"] == str(order.id)
    (parcel,) = await hf.store.run(messages(type="parcel.sent"))
    assert parcel.headers == {"request_id": "r-9", "trace_id": "t-9", "campaign": "spring", "carrier": "ups"}


async def test_the_ids_of_one_delivery_do_not_stick_to_the_next(hf: Holdfast, log: Log) -> None:
    """Also where one slot runs many, one right after the other."""
    logger = structlog.get_logger("shop")
    headers: dict[int, dict[str, str]] = {}

    @hf.job()
    async def work(ctx: Context, n: int) -> None:
        await asyncio.sleep(0.001)  # short work, so that the worker claims ahead
        logger.info("working", n=n)
        headers[n] = dict(ctx.headers)

    with correlate(request_id="r-1"):
        await hf._runtime.publish([work._message((n,), {})[1] for n in range(400)], None)
    await hf._runtime.publish([work._message((n,), {})[1] for n in range(400, 500)], None)
    await drain(hf, concurrency=2)
    lines = {line["n"]: line.get("request_id") for line in logged(log, "working")}
    assert lines == {n: "r-1" if n < 400 else None for n in range(500)}
    assert headers == {n: {"request_id": "r-1"} if n < 400 else {} for n in range(500)}


HOSTILE = {
    "event": "not the event",
    "exc_info": "1",
    "stack_info": "1",
    "level": "critical",
    "logger": "root",
    "retryable": "maybe",
    "operation": "none",
    "attempt": "99",
    "consumer": "another",
    "worker": "nobody",
    "outcome": "good",
    "next_attempt_in": "never",
    "error": "none at all",
    "self": "me",
    "method_name": "x",
    "message": "not the message",
    "name": "root",
    "args": "()",
}


async def test_headers_of_any_name_stop_nothing_and_hide_nothing(hf: Holdfast, log: Log) -> None:
    @hf.consumer("odd", retry=RetryPolicy.fixed(0, attempts=2))
    async def odd(ctx: Context, payload: object) -> None:
        structlog.get_logger("shop").info("inside")
        raise OSError("the real error")

    await hf.publish("odd", {}, conn=None, headers=HOSTILE)
    await drain(hf)
    assert await statuses(hf) == [Status.FAILED]
    (retried,), (dead,) = logged(log, "delivery retried"), logged(log, "dead letter")
    for line in (retried, dead):
        assert (line["consumer"], line["error"], line["header_event"]) == ("odd", "the real error", "not the event")
    assert (retried["attempt"], retried["retryable"], retried["operation"]) == (1, True, "odd")
    assert len(logged(log, "inside")) == 2
