"""What handlers may look like, and what they are given: through JSON, checked, once per key."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from holdfast import Context, Holdfast, KeyConflict, RetryPolicy, event, upcast
from holdfast.core.delivery import Status
from holdfast.core.message import Address
from holdfast.stores.queries.query import messages
from tests.support.apps import MakeApp
from tests.support.worker import drain, only, pass_time, statuses


@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int
    email: str


@event("order.paid")
class OrderPaid(BaseModel):
    order_id: int
    at: datetime


@event("order.sent")
class OrderSent(TypedDict):
    order_id: int


async def test_an_event_reaches_async_and_plain_handlers_with_and_without_context(hf: Holdfast) -> None:
    seen: dict[str, object] = {}

    @hf.consumer(OrderPlaced)
    async def with_context(ctx: Context, order: OrderPlaced) -> None:
        seen["with_context"] = (order, ctx.consumer, ctx.type, ctx.attempt, ctx.queue, ctx.source, ctx.key)

    @hf.consumer(OrderPlaced)
    async def without_context(order: OrderPlaced) -> None:
        seen["without_context"] = order

    @hf.consumer(OrderPlaced)
    def plain_with_context(ctx: Context, order: OrderPlaced) -> None:
        seen["plain_with_context"] = (order, ctx.message_id)

    @hf.consumer(OrderPlaced)
    def plain(order: OrderPlaced) -> None:
        seen["plain"] = order

    order = OrderPlaced(7, "ada@example.com")
    published = await hf.publish(order, conn=None, key="order:7")
    await drain(hf)
    assert seen == {
        "with_context": (order, "with_context", "order.placed", 1, "default", "app", "order:7"),
        "without_context": order,
        "plain_with_context": (order, published.id),
        "plain": order,
    }


async def test_payloads_of_every_kind_arrive_as_what_they_were(hf: Holdfast) -> None:
    seen: list[object] = []

    @hf.consumer(OrderPaid)
    async def on_model(paid: OrderPaid) -> None:
        seen.append(paid)

    @hf.consumer(OrderSent)
    async def on_dict(sent: OrderSent) -> None:
        seen.append(sent)

    @hf.consumer("stock.*")
    async def on_pattern(ctx: Context, payload: object) -> None:
        seen.append((ctx.type, payload))

    paid = OrderPaid(order_id=1, at=datetime(2026, 1, 2, tzinfo=UTC))
    for event_, payload in ((paid, None), (OrderSent, {"order_id": 2}), ("stock.low", [1, "two", None])):
        await hf.publish(event_, payload, conn=None)
        await drain(hf)
    assert seen == [paid, {"order_id": 2}, ("stock.low", [1, "two", None])]


async def test_a_consumer_gets_an_event_once_although_several_patterns_match(hf: Holdfast) -> None:
    seen: list[str] = []

    @hf.consumer("order.*", "*", "order.placed", "order.*")
    async def audit(ctx: Context, payload: object) -> None:
        seen.append(ctx.type)

    await hf.publish("order.placed", {}, conn=None)
    await drain(hf)
    assert seen == ["order.placed"]


async def test_a_handler_stays_an_ordinary_function(hf: Holdfast) -> None:
    @hf.consumer(OrderPlaced)
    def handle(order: OrderPlaced) -> int:
        return order.order_id

    @hf.job()
    def double(n: int) -> int:
        return n * 2

    assert handle(OrderPlaced(3, "x")) == 3
    assert double(4) == 8


async def test_a_jobs_parameters_defaults_and_types_survive_the_way(hf: Holdfast) -> None:
    seen: list[object] = []

    class Place(BaseModel):
        city: str

    @hf.job()
    async def send(
        ctx: Context, to: Place, at: datetime, *, times: int = 3, tags: list[str] | None = None, by: UUID | None = None
    ) -> None:
        seen.append((to, at, times, tags, by, ctx.max_attempts))

    at, by = datetime(2026, 5, 1, 12, tzinfo=UTC), UUID(int=5)
    await send.enqueue(Place(city="Ulm"), at, tags=["a"], by=by)
    await send.enqueue(Place(city="Ulm"), at=at)
    await drain(hf)
    assert sorted(seen, key=str) == sorted(
        [(Place(city="Ulm"), at, 3, ["a"], by, 5), (Place(city="Ulm"), at, 3, None, None, 5)], key=str
    )


async def test_a_call_that_does_not_fit_the_function_is_refused_at_the_door(hf: Holdfast) -> None:
    @hf.job()
    async def send(to: str) -> None: ...

    with pytest.raises(TypeError, match=r"job send.*missing a required argument: 'to'"):
        await send.enqueue()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword"):
        await send.enqueue("a", subject="b")  # type: ignore[call-arg]


@pytest.mark.parametrize("payload", [{}, {"to": "a", "cc": "b"}, ["a"]], ids=["missing", "unknown", "no-object"])
async def test_a_stored_call_that_no_longer_fits_is_dead_at_once(hf: Holdfast, payload: object) -> None:
    @hf.job(retry=RetryPolicy.fixed(0, attempts=3))
    async def send(to: str, subject: str = "") -> None: ...

    message = hf._runtime.producer.build("job.send", payload, addressed=[Address(consumer="send")])
    await hf._runtime.publish([message], None)
    await drain(hf)
    dead = await only(hf)
    assert (dead.status, dead.attempts, dead.error_type) == (
        Status.FAILED,
        1,
        "holdfast.InvalidPayload",
    )


async def test_the_same_command_twice_runs_once(hf: Holdfast) -> None:
    ran: list[tuple[int, int]] = []

    @hf.command(key="order:{user_id}:{order_id}:cancel:v1")
    async def cancel(user_id: int, order_id: int) -> None:
        ran.append((user_id, order_id))

    first = await cancel.enqueue(1, 42)
    again = await cancel.enqueue(user_id=1, order_id=42)
    other = await cancel.enqueue(1, 43)
    assert (first.created, again.created, other.created) == (True, False, True)
    assert again.id == first.id
    await drain(hf)
    assert (await cancel.enqueue(1, 42)).created is False
    await drain(hf)
    assert sorted(ran) == [(1, 42), (1, 43)]


async def test_a_command_enqueued_by_applications_of_different_sources_runs_once(dsn: str) -> None:
    ran: list[str] = []
    apps = [Holdfast(dsn, source=source) for source in ("web", "jobs")]
    cancels = []
    for app in apps:

        @app.command(key="order:{order_id}:cancel:v1")
        async def cancel(ctx: Context, order_id: int) -> None:
            ran.append(f"{ctx.source}:{order_id}")

        cancels.append(cancel)
    first = await cancels[0].enqueue(42)
    again = await cancels[1].enqueue(42)
    assert again == (first.id, False)
    by_operator = await apps[0].ops.enqueue("cancel", {"order_id": 42}, key="order:42:cancel:v1", actor="ada")
    assert by_operator == (first.id, False)
    await drain(apps[1])
    assert ran == ["web:42"]
    for app in apps:
        await app.close()


async def test_one_key_used_by_a_route_and_by_a_job_runs_once(hf: Holdfast) -> None:
    ran: list[int] = []

    @hf.command(key="order:{order_id}:cancel:v1")
    async def cancel(order_id: int) -> None:
        ran.append(order_id)

    @hf.job()
    async def clean_up() -> None:
        await cancel.enqueue(42)

    @hf.job()
    def clean_up_plain() -> None:
        cancel.sync.enqueue(42)

    await cancel.enqueue(42)  # the route
    await clean_up.enqueue()
    await clean_up_plain.enqueue()
    await drain(hf)
    assert ran == [42]
    assert len(await hf.store.run(messages(type="job.cancel"))) == 1


async def test_one_key_with_other_arguments_is_a_conflict(hf: Holdfast) -> None:
    @hf.job()
    async def send(to: str) -> None: ...

    await send.using(key="welcome:1").enqueue("ada")
    with pytest.raises(KeyConflict, match="welcome:1"):
        await send.using(key="welcome:1").enqueue("bob")


async def test_a_version_newer_than_the_worker_knows_is_left_alone_unspent(make_app: MakeApp) -> None:
    ran: list[object] = []

    @event("plan.made", version=2)
    class PlanV2(BaseModel):
        name: str
        currency: str

    @event("plan.made")
    class PlanV1(BaseModel):
        name: str

    old, new = make_app(), make_app()

    @old.consumer(PlanV1, name="plans", retry=RetryPolicy.none())
    async def on_old(plan: PlanV1) -> None:
        ran.append(plan)

    @new.consumer(PlanV2, name="plans", retry=RetryPolicy.none())
    async def on_new(plan: PlanV2) -> None:
        ran.append(plan)

    await new.publish(PlanV2(name="gold", currency="EUR"), conn=None)
    await drain(old, idle_limit=timedelta(0))
    waiting = await only(old)
    assert (waiting.status, waiting.attempts, ran) == (Status.PENDING, 0, [])
    await pass_time(new, timedelta(minutes=1), "delivery")
    await drain(new)
    assert ran == [PlanV2(name="gold", currency="EUR")]


async def test_an_older_version_is_upcast(make_app: MakeApp) -> None:
    @event("plan.made")
    class PlanV1(BaseModel):
        name: str

    @event("plan.made", version=3)
    class PlanV3(BaseModel):
        title: str
        currency: str

    @upcast(PlanV3, from_version=1)
    def add_currency(old: dict[str, object]) -> dict[str, object]:
        return {**old, "currency": "EUR"}

    @upcast(PlanV3, from_version=2)
    def rename(old: dict[str, object]) -> dict[str, object]:
        return {"title": old["name"], "currency": old["currency"]}

    hf = make_app()
    seen: list[PlanV3] = []

    @hf.consumer(PlanV3)
    async def plans(plan: PlanV3) -> None:
        seen.append(plan)

    await hf.publish(PlanV1(name="gold"), conn=None)
    await drain(hf)
    assert seen == [PlanV3(title="gold", currency="EUR")]


async def test_what_a_handler_publishes_has_a_separate_version(hf: Holdfast) -> None:
    """The version of the payload being handled must not travel on: its readers would wait for ever."""

    @event("plan.made", version=2)
    class Plan(BaseModel):
        name: str

    seen: list[object] = []

    @hf.consumer(Plan)
    async def plans(ctx: Context, plan: Plan) -> None:
        await ctx.publish(OrderPlaced(1, "x"), conn=None)
        await ctx.publish("note.made", {}, conn=None)

    @hf.consumer(OrderPlaced)
    async def orders(order: OrderPlaced) -> None:
        seen.append(order)

    @hf.consumer("note.made")
    async def notes(ctx: Context, payload: object) -> None:
        seen.append(dict(ctx.headers))

    await hf.publish(Plan(name="gold"), conn=None)
    await drain(hf)
    assert sorted(map(str, seen)) == sorted(map(str, [OrderPlaced(1, "x"), {}]))


HOSTILE = {"text": "\u0001 \U0001f600 ' \" \\ {hf} :name %s", "deep": [[[[]]]], "": "empty name", "n": 2**53}


async def test_hostile_payloads_arrive_as_they_were(hf: Holdfast) -> None:
    seen: list[object] = []

    @hf.consumer("odd")
    async def odd(payload: object) -> None:
        seen.append(payload)

    await hf.publish("odd", HOSTILE, conn=None)
    await drain(hf)
    assert seen == [HOSTILE]


async def test_a_work_list_without_handlers_here_is_left_for_others(make_app: MakeApp) -> None:
    producer, other = make_app(), make_app()

    @producer.job()
    async def elsewhere() -> None: ...

    @other.job()
    async def here() -> None: ...

    await elsewhere.enqueue()
    await here.enqueue()
    await drain(other)
    assert await statuses(other, "here") == [Status.DELIVERED]
    left = await only(other, "elsewhere")
    assert (left.status, left.attempts) == (Status.PENDING, 0)
