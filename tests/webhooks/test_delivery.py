"""Webhooks through the ordinary lifecycle: message, delivery, claim, outcome, with a real receiver at the end."""

import asyncio
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import standardwebhooks

from holdfast import CircuitBreaker, CircuitOpen, Holdfast, RetryPolicy, correlate
from holdfast.core.delivery import Delivery, Status
from holdfast.outbound.breaker import Permit
from holdfast.outbound.circuits import MemoryCircuits
from holdfast.outbound.webhooks.dispatcher import WebhookDispatcher, WebhookEvent
from holdfast.outbound.webhooks.endpoint import new_endpoint
from holdfast.stores.queries.query import runs
from holdfast.webhooks import WebhookOptions, verify
from tests.support.apps import MakeApp
from tests.support.worker import Log, all_of, drain, eventually, logged, only, query, run_records, working
from tests.webhooks.receiver import (
    LOOPBACK,
    Receiver,
    answer,
    echo,
    endless_body,
    later,
    receiving,
    reset,
    silent,
    trickle,
)

QUICK = RetryPolicy.fixed(0.02, attempts=3)


async def add(hf: Holdfast, receiver: Receiver, **given: Any) -> Any:
    wanted: dict[str, Any] = {"events": ["order.*"], "conn": None, "retry": QUICK}
    return await hf.webhooks.add(receiver.url, **wanted | given)


async def place(hf: Holdfast, number: int = 1, **headers: str) -> str:
    return str((await hf.publish("order.placed", {"id": number}, conn=None, headers=headers)).id)


async def test_an_event_is_posted_signed_and_its_answer_recorded(hf: Holdfast, receiver: Receiver) -> None:
    added = await add(hf, receiver, headers={"X-Team": "blue"})
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    published = await hf.publish("order.placed", {"id": 7, "note": "é"}, conn=None, occurred_at=at)
    await drain(hf)
    (request,) = receiver.requests
    assert request.line == "POST /in HTTP/1.1"
    assert request.json == {"type": "order.placed", "timestamp": "2026-01-02T03:04:05Z", "data": {"id": 7, "note": "é"}}
    assert request.headers["content-type"] == "application/json"
    assert request.headers["x-team"] == "blue"
    assert request.id == str(published.id)
    standardwebhooks.Webhook(added.secret).verify(request.body, request.headers)
    assert verify(request.body, request.headers, added.secret) == request.json
    assert (await only(hf)).status is Status.DELIVERED
    (run,) = await run_records(hf)
    assert run.outcome == "succeeded"
    assert run.detail is not None
    assert (run.detail["status"], run.detail["excerpt"]) == (200, "thanks")
    assert run.detail["latency_ms"] > 0  # type: ignore[operator]


async def test_each_attempt_is_signed_again_under_the_same_id(
    hf: Holdfast, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = await add(hf, receiver)
    receiver.then(answer(500, b"oops"), answer(503), answer(200))
    moments = iter([1_700_000_000.9, 1_700_000_100.2, 1_700_000_200.0])
    # Only the dispatcher's clock: on Python 3.11 each log record reads time.time too.
    clock = SimpleNamespace(time=lambda: next(moments), monotonic=time.monotonic)
    monkeypatch.setattr("holdfast.outbound.webhooks.dispatcher.time", clock)
    id = await place(hf)
    await drain(hf)
    assert [request.id for request in receiver.requests] == [id] * 3
    assert len({request.body for request in receiver.requests}) == 1
    stamps = [int(request.headers["webhook-timestamp"]) for request in receiver.requests]
    assert stamps == [1_700_000_000, 1_700_000_100, 1_700_000_200]
    for request, stamp in zip(receiver.requests, stamps, strict=True):
        verify(request.body, request.headers, added.secret, now=stamp)
    first, second, third = await run_records(hf)
    assert first.error == f'127.0.0.1:{receiver.port} answered 500 Internal Server Error: "oops"'
    assert [run.detail["status"] for run in (first, second, third) if run.detail] == [500, 503, 200]


async def test_an_endpoint_gets_its_tenants_events_of_its_types_alone(hf: Holdfast) -> None:
    async with receiving(answer(200)) as acme, receiving(answer(200)) as globex, receiving(answer(200)) as everyone:
        await add(hf, acme, tenant="acme")
        await add(hf, globex, tenant="globex", events=["order.placed", "order.*"])
        await add(hf, everyone, events=["*"])
        for number, tenant in enumerate(["acme", "globex", "acme"], start=1):
            await place(hf, number, tenant=tenant)
        with correlate(tenant="globex"):
            await hf.publish("order.line.added", {"id": 4}, conn=None)
        await hf.publish("invoice.sent", {"id": 5}, conn=None, headers={"tenant": "acme"})
        await place(hf, 6)
        await drain(hf)
        assert ids(acme) == [1, 3]
        assert ids(globex) == [2, 4]
        assert ids(everyone) == [1, 2, 3, 4, 5, 6]
    assert len(await all_of(hf)) == 10


def ids(receiver: Receiver) -> list[int]:
    return sorted(request.json["data"]["id"] for request in receiver.requests)


async def test_a_delivery_of_another_tenant_is_not_sent_although_it_was_written(
    hf: Holdfast, receiver: Receiver
) -> None:
    await add(hf, receiver, tenant="acme")
    await place(hf, tenant="acme")
    await query(hf, "update {hf}endpoint set tenant = 'globex'")
    await drain(hf)
    assert receiver.requests == []
    found = await only(hf)
    assert (found.status, found.dead) == (Status.FAILED, False)


async def test_a_tenant_is_looked_at_when_a_new_endpoint_catches_up(make_app: MakeApp, receiver: Receiver) -> None:
    """A publisher that was under way, and did not know the endpoint, wrote the event without a delivery for it."""
    hf, other = make_app(webhooks=LOOPBACK), make_app(webhooks=LOOPBACK)
    await add(hf, receiver, tenant="acme")
    await place(other, 1, tenant="acme")
    await place(other, 2, tenant="globex")
    await query(hf, "delete from {hf}delivery")
    await query(hf, "update {hf}message set sub_epoch = 0")
    if hf.store.dialect.name == "sqlite":
        await query(hf, "update {hf}subscription set mark_position = 0")
    else:
        await query(hf, "update {hf}subscription set mark_tx = '0'")
    await drain(hf)
    assert ids(receiver) == [1]
    assert len(await all_of(hf)) == 1, "nothing was written for another tenant's event"


async def test_endpoints_added_while_a_worker_runs_are_served(hf: Holdfast, receiver: Receiver) -> None:
    async with working(hf):
        await eventually(hf.ops.workers)
        added = await add(hf, receiver)
        await place(hf)
        await eventually(lambda: receiver.requests)
        (worker,) = await eventually(lambda: serving(hf, f"webhook:{added.id}"))
        assert worker.alive


async def serving(hf: Holdfast, consumer: str) -> list[Any]:
    return [worker for worker in await hf.ops.workers() if consumer in worker.consumers]


async def test_events_before_an_endpoint_are_not_sent_to_it(hf: Holdfast, receiver: Receiver) -> None:
    await place(hf, 1)
    await add(hf, receiver)
    await place(hf, 2)
    await drain(hf)
    assert ids(receiver) == [2]


async def test_a_rotated_secret_signs_together_with_the_new_one_for_a_while(hf: Holdfast, receiver: Receiver) -> None:
    first = (await add(hf, receiver)).secret
    (webhook,) = await hf.ops.webhooks()
    second = (await hf.ops.rotate_webhook_secret(webhook.id, actor="ada", overlap="1h")).secret
    await place(hf)
    await drain(hf)
    for secret in (first, second):
        standardwebhooks.Webhook(secret).verify(receiver.requests[0].body, receiver.requests[0].headers)
    assert len(receiver.requests[0].headers["webhook-signature"].split(" ")) == 2
    await query(hf, "update {hf}endpoint set previous_until = created_at")
    await place(hf)
    await drain(hf)
    standardwebhooks.Webhook(second).verify(receiver.requests[1].body, receiver.requests[1].headers)
    with pytest.raises(standardwebhooks.WebhookVerificationError):
        standardwebhooks.Webhook(first).verify(receiver.requests[1].body, receiver.requests[1].headers)


@pytest.mark.parametrize("headers", [{}, {"retry_after": "30"}], ids=["plain", "with Retry-After"])
async def test_gone_disables_the_endpoint_and_holds_what_is_there(
    hf: Holdfast, receiver: Receiver, headers: dict[str, Any]
) -> None:
    await add(hf, receiver, concurrency=1)
    receiver.then(answer(410, **headers))
    await place(hf, 1)
    await drain(hf)
    (webhook,) = await hf.ops.webhooks()
    assert webhook.disabled_at is not None
    assert webhook.disabled_reason is not None
    assert "410 Gone" in webhook.disabled_reason
    assert (await only(hf)).dead
    await place(hf, 2)
    assert len(await all_of(hf)) == 1, "nothing is written for an endpoint that is disabled"
    (entry, *_) = await hf.ops.audit()
    assert (entry.actor, entry.action, entry.kind) == ("holdfast", "disable", "webhook")


async def test_what_a_disabled_endpoint_holds_goes_out_when_it_is_enabled(hf: Holdfast, receiver: Receiver) -> None:
    added = await add(hf, receiver)
    await place(hf, 1)
    assert await hf.ops.disable_webhook(added.id, actor="ada", reason="they asked")
    assert not await hf.ops.disable_webhook(added.id, actor="ada", reason="again")
    await place(hf, 2)
    async with working(hf):
        await asyncio.sleep(0.1)
        assert receiver.requests == []
        assert (await only(hf)).fence == 0, "it was not even claimed"
        assert await hf.ops.enable_webhook(added.id, actor="ada")
        assert not await hf.ops.enable_webhook(added.id, actor="ada")
        await place(hf, 3)
        await eventually(lambda: len(receiver.requests) == 2)
    assert ids(receiver) == [1, 3]


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
@pytest.mark.parametrize("status", [301, 307, 400, 401, 403, 404, 409, 413, 422])
async def test_an_answer_that_another_attempt_will_not_change_is_dead_at_once(
    hf: Holdfast, receiver: Receiver, status: int
) -> None:
    await add(hf, receiver)
    receiver.then(answer(status, b"no", location="http://169.254.169.254/latest/meta-data"))
    await place(hf)
    await drain(hf)
    assert len(receiver.requests) == 1
    found = await only(hf)
    assert found.dead
    assert f"answered {status}" in str(found.last_error)


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 507])
async def test_an_answer_that_may_change_is_tried_again(hf: Holdfast, receiver: Receiver, status: int) -> None:
    await add(hf, receiver)
    receiver.then(answer(status), answer(201))
    await place(hf)
    await drain(hf)
    assert len(receiver.requests) == 2
    assert (await only(hf)).status is Status.DELIVERED


def soon(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%a, %d %b %Y %H:%M:%S GMT")


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("retry_after", "low", "high"),
    [
        ("20", 18, 20),
        ("0", 0, 0.1),
        ("-5", 0, 0.1),
        ("1.5", 0.5, 1.5),
        ("1000000000000", 590, 600),
        ("9" * 300, 590, 600),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0, 0.1),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0, 0.1),
        ("in a minute", 100, 100),
        ("", 100, 100),
        ("NaN", 100, 100),
        ("in 40 s", 30, 41),
    ],
)
async def test_retry_after_is_honoured_within_bounds(
    make_app: MakeApp, receiver: Receiver, status: int, retry_after: str, low: float, high: float
) -> None:
    hf = make_app(webhooks=LOOPBACK)
    policy = RetryPolicy.fixed(100, attempts=3, retry_after_cap="10m")
    await add(hf, receiver, retry=policy)
    said_wait = soon(40) if retry_after == "in 40 s" else retry_after
    receiver.then(answer(status, retry_after=said_wait))
    await place(hf)
    async with working(hf):
        found: Delivery = await eventually(lambda: retried(hf))
    assert found.attempts >= 1
    waits = (found.run_at - datetime.now(UTC)).total_seconds()
    slack = 3.0
    assert low - slack <= waits <= high + slack


async def retried(hf: Holdfast) -> Delivery | None:
    found = await only(hf)
    return found if found.error_type else None


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_an_endpoint_that_asks_for_patience_gets_it_for_all_its_deliveries(
    hf: Holdfast, receiver: Receiver
) -> None:
    await add(hf, receiver, concurrency=1)
    receiver.then(answer(429, retry_after="30"))
    for number in range(5):
        await place(hf, number)
    async with working(hf):
        await eventually(lambda: receiver.requests)
        await asyncio.sleep(0.3)
    assert len(receiver.requests) == 1
    assert {one.status for one in await all_of(hf)} == {Status.PENDING}


@pytest.mark.parametrize("act", [silent, trickle, reset, endless_body], ids=["silent", "trickle", "reset", "endless"])
async def test_a_hostile_receiver_costs_its_own_attempts_alone(make_app: MakeApp, receiver: Receiver, act: Any) -> None:
    options = WebhookOptions(allow_networks=("127.0.0.0/8",), allow_http=True, timeout=0.3)
    hf = make_app(webhooks=options)
    async with receiving(act) as bad:
        added = await add(hf, bad, retry=RetryPolicy.fixed(0, attempts=2))
        await add(hf, receiver)
        await place(hf)
        await drain(hf)
        assert len(receiver.requests) == 1
        its = await only(hf, f"webhook:{added.id}")
    if act is endless_body:
        assert its.status is Status.DELIVERED
    else:
        assert its.dead
        assert its.attempts == 2
        assert its.error_type == ("ConnectionError" if act is reset else "TimeoutError")


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_while_its_circuit_is_open_deliveries_park_and_none_is_dead(
    make_app: MakeApp, receiver: Receiver, log: Log
) -> None:
    options = WebhookOptions(allow_networks=("127.0.0.0/8",), allow_http=True, threshold=3, cooldown=0.4, timeout=0.5)
    hf = make_app(webhooks=options)
    added = await add(hf, receiver, retry=RetryPolicy.fixed(0.01, attempts=4))
    await receiver.die()
    numbers = range(12)
    for number in numbers:
        await place(hf, number)
    async with working(hf):
        await eventually(lambda: logged(log, "delivery parked"))
        await asyncio.sleep(1.0)  # several probes fail
        found = await all_of(hf)
        assert {one.status for one in found} <= {Status.PENDING, Status.IN_FLIGHT}
        assert max(one.attempts for one in found) < 4
        (webhook,) = await hf.ops.webhooks()
        assert webhook.circuit != "closed"
        await receiver.open()
        await eventually(lambda: len(receiver.requests) >= len(numbers))
        await eventually(lambda: delivered(hf))
    assert ids(receiver) == list(numbers)
    assert any(line["circuit"] == f"webhook:{added.id}" for line in logged(log, "delivery parked"))


async def delivered(hf: Holdfast) -> bool:
    return {one.status for one in await all_of(hf)} == {Status.DELIVERED}


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_a_receiver_that_refuses_everything_is_left_alone_after_a_few(
    make_app: MakeApp, receiver: Receiver
) -> None:
    options = WebhookOptions(allow_networks=("127.0.0.0/8",), allow_http=True, threshold=3)
    hf = make_app(webhooks=options)
    await add(hf, receiver, concurrency=1)
    receiver.then(answer(404))
    for number in range(10):
        await place(hf, number)
    async with working(hf):
        await eventually(lambda: parked(hf, 8))
    assert len(receiver.requests) == 3
    assert sum(one.dead for one in await all_of(hf)) == 2


async def parked(hf: Holdfast, count: int) -> bool:
    found = await all_of(hf)
    return sum(one.error_type == "holdfast.CircuitOpen" for one in found) == count


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_no_more_run_at_once_than_an_endpoint_takes(hf: Holdfast, receiver: Receiver) -> None:
    await add(hf, receiver, concurrency=2)
    receiver.then(later(0.03, answer(200)))
    for number in range(20):
        await place(hf, number)
    await drain(hf)
    assert ids(receiver) == list(range(20))
    assert receiver.most_at_once == 2
    recorded = [run for one in await all_of(hf) for run in await hf.store.run(runs(one.id))]
    assert len(recorded) == 20, "waiting for its turn is no run"


async def test_a_delivery_that_waits_for_its_turn_uses_no_token_of_the_rate(hf: Holdfast, receiver: Receiver) -> None:
    await add(hf, receiver, concurrency=2, rate="20/1m")
    receiver.then(later(0.02, answer(200)))
    for number in range(20):
        await place(hf, number)
    async with working(hf, concurrency=50):
        await eventually(lambda: len(receiver.requests) == 20)
    assert receiver.most_at_once == 2


async def test_no_more_are_sent_in_a_window_than_an_endpoint_takes(hf: Holdfast, receiver: Receiver) -> None:
    added = await add(hf, receiver, rate="5/1s")
    for number in range(10):
        await place(hf, number)
    started = asyncio.get_running_loop().time()
    await drain(hf)
    assert len(receiver.requests) == 10
    assert asyncio.get_running_loop().time() - started >= 0.9
    await hf.ops.limit_consumer(f"webhook:{added.id}", rate="100/1s", actor="ada")
    (shown,) = await hf.ops.webhooks()
    assert (shown.rate, shown.order) == ("100/1s", None)


async def test_an_ordered_endpoint_gets_events_one_at_a_time_in_order(hf: Holdfast, receiver: Receiver) -> None:
    added = await add(hf, receiver, order="block")
    for number in range(10):
        await place(hf, number)
    await drain(hf)
    assert ids(receiver) == list(range(10))
    assert [one.json["data"]["id"] for one in receiver.requests] == list(range(10))
    assert receiver.most_at_once == 1
    (shown,) = await hf.ops.webhooks()
    assert shown.order == "block"
    assert (await hf.ops.keys(f"webhook:{added.id}")).flow.order == "block"


async def test_a_worker_that_does_not_allow_the_network_sends_nothing(make_app: MakeApp, receiver: Receiver) -> None:
    await add(make_app(webhooks=LOOPBACK), receiver)
    strict = make_app(webhooks=WebhookOptions(allow_http=True))
    await place(strict)
    await drain(strict)
    assert receiver.requests == []
    found = await only(strict)
    assert found.dead
    assert "127.0.0.1" in str(found.last_error)


async def test_no_secret_is_logged_stored_with_a_run_or_shown(hf: Holdfast, receiver: Receiver, log: Log) -> None:
    added = await add(hf, receiver, headers={"authorization": "Bearer s3cret"})
    receiver.then(echo)
    await place(hf)
    await drain(hf)
    (webhook,) = await hf.ops.webhooks()
    shown = [repr(added), repr(webhook), repr(await run_records(hf)), repr(await only(hf)), repr(log)]
    shown.append(repr(await hf.ops.audit()))
    for text in shown:
        assert added.secret not in text
        assert added.secret.removeprefix("whsec_") not in text
        assert "s3cret" not in text
    assert receiver.requests[0].headers["authorization"] == "Bearer s3cret"


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_without_an_http_client_webhooks_wait_and_the_rest_is_done(
    hf: Holdfast, receiver: Receiver, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []
    hf.consumer("order.placed", name="own")(lambda payload: done.append(payload))
    added = await add(hf, receiver)
    await place(hf)
    monkeypatch.setattr("holdfast.runtime.endpoint_handlers.find_spec", lambda _: None)
    await drain(hf)
    assert len(done) == 1
    assert (await only(hf, f"webhook:{added.id}")).attempts == 0
    assert len(logged(log, "webhook client missing")) == 1
    monkeypatch.undo()
    await drain(hf)
    assert len(receiver.requests) == 1


def test_everything_but_sending_needs_no_http_client() -> None:
    program = """
import sys
sys.modules["httpcore2"] = sys.modules["httpx2"] = sys.modules["anyio"] = None
import holdfast.outbound.webhooks.dispatcher, holdfast.webhooks, holdfast.ops.resources.webhooks
from holdfast import ConfigurationError, Holdfast, WebhookOptions
from holdfast.outbound.webhooks.sender import WebhookSender
Holdfast("sqlite:///nowhere.db").webhooks
try:
    WebhookSender(WebhookOptions())
except ConfigurationError as error:
    print(error)
"""
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert shown.stdout == "sending webhooks needs an HTTP client; run `pip install 'holdfast[http]'`\n", shown.stderr


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_what_is_left_of_an_endpoint_that_was_deleted_is_dead(hf: Holdfast, receiver: Receiver) -> None:
    await add(hf, receiver)
    async with working(hf):
        await place(hf)
        await eventually(lambda: receiver.requests)
        await query(hf, "delete from {hf}endpoint")
        await asyncio.sleep(1.5)
        await hf.publish("order.placed", {"id": 2}, conn=None)
        await eventually(lambda: some_dead(hf))
    assert len(receiver.requests) == 1


async def some_dead(hf: Holdfast) -> bool:
    return any(one.dead for one in await all_of(hf))


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
@pytest.mark.parametrize("status", [410, 500])
async def test_the_query_of_an_address_is_a_secret_too(hf: Holdfast, receiver: Receiver, log: Log, status: int) -> None:
    url = f"http://127.0.0.1:{receiver.port}?key=s3cret"
    await hf.webhooks.add(url, events=["order.*"], conn=None, retry=QUICK, headers={"authorization": "Bearer t0ken"})
    receiver.then(answer(status, b"no such page: /?key=s3cret, nor is t0ken known"))
    await place(hf)
    await drain(hf)
    assert receiver.requests[0].line == "POST /?key=s3cret HTTP/1.1"
    (webhook,) = await hf.ops.webhooks()
    shown = f"{webhook!r}{await run_records(hf)!r}{await only(hf)!r}{log!r}{await hf.ops.audit()!r}"
    assert "s3cret" not in shown
    assert "t0ken" not in shown


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
async def test_the_path_of_an_address_is_hidden_unless_it_is_asked_for(
    hf: Holdfast, receiver: Receiver, log: Log
) -> None:
    await hf.webhooks.add(
        f"http://127.0.0.1:{receiver.port}/services/T0/x9f8e7d6c5b4a3", events=["order.*"], conn=None, retry=QUICK
    )
    receiver.then(answer(500, b"cannot POST /services/T0/x9f8e7d6c5b4a3; unknown hook x9f8e7d6c5b4a3"))
    await place(hf)
    await drain(hf)
    (webhook,) = await hf.ops.webhooks()
    assert webhook.url == f"http://127.0.0.1:{receiver.port}/…"
    shown = f"{webhook!r}{await run_records(hf)!r}{await only(hf)!r}{log!r}{await hf.ops.audit()!r}"
    assert "x9f8e7d6c5b4a3" not in shown
    (whole,) = await hf.ops.webhooks(show_path=True)
    assert whole.url.endswith("/services/T0/x9f8e7d6c5b4a3")


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
@pytest.mark.parametrize("strict", [{"allow_http": True}, {"allow_networks": ("127.0.0.0/8",)}])
async def test_a_name_that_comes_to_lead_where_it_must_not_costs_a_few_deliveries_and_not_all(
    make_app: MakeApp, receiver: Receiver, strict: dict[str, Any]
) -> None:
    await add(make_app(webhooks=LOOPBACK), receiver)
    hf = make_app(webhooks=WebhookOptions(**strict, threshold=3))
    for number in range(10):
        await place(hf, number)
    async with working(hf, concurrency=1):
        await eventually(lambda: parked(hf, 8))
    assert receiver.requests == []
    assert sum(one.dead for one in await all_of(hf)) == 2


async def test_a_probe_that_came_late_to_its_turn_has_what_is_left_and_no_more() -> None:
    circuits = MemoryCircuits()
    dispatcher = WebhookDispatcher(replace(LOOPBACK, timeout=5), circuits, disable=lambda *_: asyncio.sleep(0))
    async with receiving(silent) as receiver:
        endpoint = new_endpoint(receiver.url, events=["order.*"], options=LOOPBACK)
        await CircuitBreaker(endpoint.consumer, circuits).trip(0.01, "down")
        await asyncio.sleep(0.02)
        breaker = dispatcher._breaker(endpoint)
        permit = await breaker.admit()
        late = Permit(permit.entry, asyncio.get_running_loop().time() - 1)
        breaker.admit = lambda: asyncio.sleep(0, late)  # type: ignore[method-assign]
        event = WebhookEvent(id="1", type="order.placed", occurred_at=datetime.now(UTC), payload={})
        async with asyncio.timeout(2):
            with pytest.raises(CircuitOpen):
                await dispatcher.deliver(endpoint, event, lambda _: None)
    await dispatcher.close()
