"""One trace crosses the request, the outbox, the handler, what it publishes, and a replay; and none costs nothing."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer
from structlog.contextvars import get_contextvars

from holdfast import Context, Holdfast, RetryPolicy, correlate
from holdfast.app.telemetry import export
from holdfast.brokers import redis
from holdfast.core.delivery import Status
from holdfast.core.errors import StoreUnavailable
from holdfast.core.outcome import Succeeded
from holdfast.core.redaction.redact import Redaction
from holdfast.core.telemetry.trace_context import read_traceparent
from holdfast.engine.execution.invocation import RunResult
from holdfast.engine.telemetry.tracing import Tracing, traced
from holdfast.stores.admin.redaction import declare
from tests.engine.test_claim_scheduler import claimed
from tests.servers.redis import RedisServer
from tests.support.apps import MakeApp
from tests.support.worker import Log, all_of, drain, logged, only, wait_for, working

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """A separate provider, and the spans it received."""

    def __init__(self) -> None:
        self.provider, self._kept = TracerProvider(), InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))

    @property
    def tracer(self) -> Tracer:
        return self.provider.get_tracer("test")

    def all(self) -> list[ReadableSpan]:
        return sorted(self._kept.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def parent(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def own(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


async def test_one_trace_crosses_request_message_handler_and_what_it_publishes(
    make_app: MakeApp, spans: Spans, log: Log
) -> None:
    hf = make_app(tracing=Tracing(provider=spans.provider))
    bound: list[dict[str, Any]] = []

    @hf.consumer("order.placed", name="billing")
    async def billing(ctx: Context, payload: dict[str, Any]) -> None:
        bound.append(get_contextvars())
        await ctx.publish("order.billed", {}, conn=None)

    @hf.consumer("order.billed", name="mail")
    def mail(ctx: Context, payload: dict[str, Any]) -> None:
        bound.append(get_contextvars())

    with spans.tracer.start_as_current_span("POST /orders") as request, correlate(request_id="r-1"):
        published = await hf.publish("order.placed", {}, conn=None)
    await drain(hf)

    names = ["POST /orders", "publish order.placed", "process order.placed", "publish order.billed"]
    names.append("process order.billed")
    chain = [spans.named(name)[0] for name in names]
    assert len(spans.all()) == len(chain)
    trace = request.get_span_context().trace_id
    assert {span.context.trace_id for span in chain if span.context} == {trace}
    assert [parent(span) for span in chain] == [None, *(own(span) for span in chain[:-1])]
    assert [span.kind for span in chain[1:3]] == [SpanKind.PRODUCER, SpanKind.CONSUMER]
    attributes = chain[2].attributes or {}
    assert attributes["messaging.consumer.group.name"] == "billing"
    assert attributes["messaging.message.id"] == str(published.id)
    assert attributes["messaging.message.conversation_id"] == "r-1"
    assert [one["trace_id"] for one in bound] == [f"{trace:032x}"] * 2
    assert [one["request_id"] for one in bound] == ["r-1"] * 2


async def test_retries_and_replays_refer_to_the_first_attempt_and_errors_show_no_secret(
    make_app: MakeApp, spans: Spans
) -> None:
    hf = make_app(tracing=Tracing(provider=spans.provider))
    well = False

    @hf.consumer("card.charged", name="charge", retry=RetryPolicy.fixed(0, attempts=2))
    async def charge(payload: dict[str, Any]) -> None:
        if not well:
            raise ConnectionError(f"cannot charge {payload['card']}")

    await hf._runtime.registration.prepare()
    await hf.store.run(declare([Redaction("card.*", "card")]))
    await hf.publish("card.charged", {"card": "4111-1111"}, conn=None)
    await drain(hf)
    dead = await only(hf)
    assert dead.status is Status.FAILED
    well = True
    await hf.ops.replay([dead.id], actor="ada")
    await drain(hf)

    first, second, third = spans.named("process card.charged")
    assert [span.links for span in (first,)] == [()]
    for later, why in ((second, "retry"), (third, "replay")):
        (link,) = later.links
        assert link.context.span_id == own(first)
        assert (link.attributes or {})["holdfast.link"] == why
    assert len({span.context.trace_id for span in (first, second, third) if span.context}) == 1
    assert (first.status.status_code, third.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    (event,) = first.events
    assert (event.attributes or {})["exception.message"] == "cannot charge [redacted]"
    assert "4111" not in first.to_json()
    (run, _) = (await hf.ops.delivery(dead.id)).runs
    found = read_traceparent((run.detail or {}).get("traceparent"))
    assert found is not None
    assert int(found.span_id, 16) == own(first)


async def test_a_handler_may_begin_a_separate_trace_that_refers_to_the_publisher(
    make_app: MakeApp, spans: Spans
) -> None:
    hf = make_app(tracing=Tracing(provider=spans.provider, links=True))

    @hf.job()
    async def work() -> None: ...

    await work.enqueue()
    await drain(hf)
    (publish,), (process,) = spans.named("publish job.work"), spans.named("process job.work")
    assert process.parent is None
    assert [link.context.span_id for link in process.links] == [own(publish)]
    assert process.context is not None
    assert publish.context is not None
    assert process.context.trace_id != publish.context.trace_id


async def test_many_at_once_share_one_span(make_app: MakeApp, spans: Spans) -> None:
    hf = make_app(tracing=Tracing(provider=spans.provider))
    await hf.publish_many([("order.placed", {"n": n}) for n in range(3)], conn=None)
    await hf.publish_many([("order.placed", {"n": n}) for n in range(150)], conn=None)
    three, many = spans.all()
    assert (three.name, (three.attributes or {})["messaging.batch.message_count"]) == ("publish order.placed", 3)
    messages = await hf.ops.messages(limit=200)
    carried = {message.headers["traceparent"] for message in messages}
    assert {int(found.span_id, 16) for text in carried if (found := read_traceparent(text))} == {own(three), own(many)}


async def test_a_trace_that_comes_with_a_request_travels_on_without_opentelemetry(make_app: MakeApp, log: Log) -> None:
    hf = make_app(tracing=Tracing(enabled=False))

    @hf.job(retry=RetryPolicy.none())
    async def work() -> None:
        raise ConnectionError("no route")

    with correlate(traceparent=PARENT):
        await work.enqueue()
    await drain(hf)
    (line,) = logged(log, "dead letter")
    assert line["trace_id"] == "0af7651916cd43dd8448eb211c80319c"


class Broken(SpanProcessor):
    """Fails at the given step of every span."""

    def __init__(self, step: str) -> None:
        self._step = step

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        if self._step == "start":
            raise RuntimeError("the exporter is broken")

    def on_end(self, span: Any) -> None:
        if self._step == "end":
            raise RuntimeError("the exporter is broken")


@pytest.mark.parametrize("step", ["start", "end"])
async def test_a_tracer_that_raises_costs_no_publish_no_attempt_and_no_second_run(
    make_app: MakeApp, spans: Spans, log: Log, step: str
) -> None:
    spans.provider.add_span_processor(Broken(step))
    hf = make_app(tracing=Tracing(provider=spans.provider))
    ran: list[int] = []

    @hf.consumer("order.placed", name="billing", retry=RetryPolicy.fixed(0, attempts=3))
    async def billing(ctx: Context, payload: dict[str, Any]) -> None:
        ran.append(ctx.attempt)

    await hf.publish("order.placed", {}, conn=None)
    await drain(hf)
    assert ran == [1]
    assert (await only(hf)).status is Status.DELIVERED
    assert logged(log, "tracing failed")


async def test_a_tracer_that_cannot_be_had_is_done_without(make_app: MakeApp, log: Log) -> None:
    class Provider:
        def get_tracer(self, *_: object) -> None:
            raise RuntimeError("not configured")

    hf = make_app(tracing=Tracing(provider=Provider()))
    await hf.publish("order.placed", {}, conn=None)
    await hf.publish("order.placed", {}, conn=None)
    assert len(logged(log, "tracing failed")) == 1


async def test_a_store_that_is_away_costs_a_link_and_not_the_attempt(spans: Spans, log: Log) -> None:
    async def away() -> str | None:
        raise StoreUnavailable("shop")

    async def run() -> Any:
        return RunResult(Succeeded())

    ended, trace = await traced(Tracing(provider=spans.provider), claimed("mail")._replace(fence=2), run, away)
    assert isinstance(ended.outcome, Succeeded)
    assert trace is not None


async def test_metrics_reach_opentelemetry(make_app: MakeApp) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    hf = make_app()

    @hf.job(queue="mail", retry=RetryPolicy.none())
    async def work(fail: bool) -> None:
        if fail:
            raise ConnectionError("no route")

    await hf._runtime.registration.prepare()
    assert export(hf, provider)
    await work.enqueue(True)
    await work.enqueue(False)
    await drain(hf)
    assert len(await all_of(hf)) == 2
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, list[Any]] = {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    provider.shutdown()
    runs = {point.attributes["operation"]: point.value for point in found["holdfast.runs"] if point.value}
    assert runs == {"deliver": 1, "dead_letter": 1}
    assert [point.count for point in found["holdfast.run"]] == [2]
    assert [point.value for point in found["holdfast.deliveries_all"]] == [0, 0, 0, 1, 0]
    assert not export(hf, None)


def test_without_opentelemetry_configured_nothing_of_it_is_imported(tmp_path: Any) -> None:
    code = f"""
import sys
from holdfast import Holdfast
hf = Holdfast("sqlite:///{tmp_path / "a.db"}")

@hf.job()
async def work() -> None: ...

work.sync.enqueue()
hf.run(until_idle=True)
assert hf.meter.families()[0].samples[0].value == 1
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        None,
        7,
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        PARENT + "-more",
        PARENT.upper(),
    ],
)
def test_a_traceparent_that_is_none_is_passed_over(text: object) -> None:
    assert read_traceparent(text) is None


def test_a_traceparent_is_read_and_written_alike() -> None:
    assert str(read_traceparent(PARENT)) == PARENT
    assert read_traceparent("01" + PARENT[2:] + "-later") is not None


async def test_one_trace_crosses_the_broker_between_two_apps(tmp_path: Path, spans: Spans, log: Log) -> None:
    with RedisServer() as server:
        shop = Holdfast(f"sqlite:///{tmp_path / 'shop.db'}", source="shop", tracing=Tracing(provider=spans.provider))
        shop.relay("order.*", to=redis.stream("orders", url=server.url), name="orders-out")
        depot = Holdfast(f"sqlite:///{tmp_path / 'depot.db'}", source="depot", tracing=Tracing(provider=spans.provider))
        shipped = asyncio.Event()

        @depot.consumer("order.placed", source=redis.stream("orders", group="depot", url=server.url), name="ship")
        async def ship(ctx: Context, payload: dict[str, Any]) -> None:
            structlog.get_logger("depot").info("shipping")
            shipped.set()

        async with working(depot):
            with spans.tracer.start_as_current_span("POST /orders") as request, correlate(request_id="r-1"):
                await shop.publish("order.placed", {"n": 1}, conn=None)
            await drain(shop)
            await wait_for(shipped)
        await shop.close()
        await depot.close()
    (publish,), (process,) = spans.named("publish order.placed"), spans.named("process order.placed")
    assert parent(publish) == request.get_span_context().span_id
    assert parent(process) == own(publish)
    (line,) = logged(log, "shipping")
    assert (line["request_id"], line["trace_id"]) == ("r-1", f"{request.get_span_context().trace_id:032x}")
