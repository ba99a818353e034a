"""Declarations that cannot work are refused when they are made, with a word on what would do."""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import Field

from holdfast import (
    ConfigurationError,
    Holdfast,
    HoldfastError,
    IdempotencyMiddleware,
    InvalidPayload,
    RetryPolicy,
    Router,
    Snooze,
    WorkerOptions,
    event,
    upcast,
    with_retry,
)
from holdfast.brokers import kafka, nats, rabbitmq, redis
from holdfast.core.delivery import Status
from holdfast.engine.maintenance.cron import Schedule
from tests.support.apps import MakeApp
from tests.support.worker import Log, all_of, drain, only


@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int


@event("order.paid")
@dataclass
class OrderPaid:
    order_id: int


@pytest.fixture
def hf() -> Holdfast:
    """Nothing is connected until it is used."""
    return Holdfast("sqlite:///never-made.db")


def handle(payload: object) -> None: ...


async def handle_async(payload: object) -> None: ...


def no_parameters() -> None: ...


def many(*numbers: int) -> None: ...


async def pay(order_id: int) -> None: ...


async def pay_positive(order_id: Annotated[int, Field(gt=0)]) -> None: ...


def generator(payload: object) -> Iterator[None]:
    yield


async def async_generator() -> AsyncIterator[None]:
    yield


class Handles:
    async def __call__(self, payload: object) -> None: ...


def _consume(**options: Any) -> Callable[[Holdfast], Any]:
    return lambda hf: hf.consumer("a", **options)(handle)


REFUSED: list[tuple[str, Callable[[Holdfast], Any]]] = [
    (r"must take \(payload\)", lambda hf: hf.consumer("a")(no_parameters)),
    ("cannot be stored by name", lambda hf: hf.job()(many)),
    ("names no event", lambda hf: hf.consumer()(handle)),
    ("neither an event class nor a name", lambda hf: hf.consumer(7)(handle)),  # type: ignore[arg-type]
    ("give one event class, or only names", lambda hf: hf.consumer(OrderPlaced, OrderPaid)(handle)),
    ("'beginning' or 'now'", lambda hf: hf.consumer("a", start="later")(handle)),
    ("key 'fixed' names nothing", lambda hf: hf.command(key="fixed")(pay)),
    ("names amount", lambda hf: hf.command(key="pay:{amount}")(pay)),
    ("takes no parameters", lambda hf: hf.cron("* * * * *")(pay)),
    ("cannot be read", lambda hf: hf.cron("61 * * * *")(no_parameters)),
    ("has 2 fields; give minute, hour", lambda hf: hf.cron("every day")(no_parameters)),
    ("cannot be read", lambda hf: hf.cron("0 0 30 2 *")(no_parameters)),
    ("time zone 'Mars/Olympus'", lambda hf: hf.cron("* * * * *", tz="Mars/Olympus")(no_parameters)),
    ("time zone ''", lambda hf: hf.cron("* * * * *", tz="")(no_parameters)),
    (r"time zone '\.\./etc/passwd'", lambda hf: hf.cron("* * * * *", tz="../etc/passwd")(no_parameters)),
    ("use one of last, all, skip", lambda hf: hf.cron("* * * * *", missed="never")(no_parameters)),
    ("OSError is in both dead_on and retry_on", lambda hf: hf.job(dead_on=(OSError,), retry_on=(OSError,))(pay)),
    ("priority is 4", lambda hf: hf.job(priority=4)(pay)),
    # Unknown options, with the nearest right one.
    (r"@hf.consumer has no option 'retries'; .*retry=RetryPolicy.exponential\(attempts=5\)", _consume(retries=5)),
    ("no option 'max_retries'.*attempts=5", lambda hf: hf.job(max_retries=5)),  # type: ignore[call-arg]
    ("no option 'timout'; did you mean timeout=", _consume(timout="5s")),
    ("no option 'strat'; did you mean start=", _consume(strat="now")),
    ("no option 'timezone'; give tz=", lambda hf: hf.cron("* * * * *", timezone="UTC")),  # type: ignore[call-arg]
    ("no option 'swop'; did you mean swap=", lambda hf: hf.projector("a", swop=print)),  # type: ignore[call-arg]
    ("no option 'colour'; leave it out. It takes batch, block_on, by, classify", lambda hf: hf.job(colour="red")),  # type: ignore[call-arg]
    ("no option 'delay'; say it for each call", lambda hf: hf.job(delay=5)),  # type: ignore[call-arg]
    # Decorators without parentheses.
    (r"@hf.consumer on handle needs parentheses", lambda hf: hf.consumer(handle)),  # type: ignore[arg-type]
    (r"@hf.projector on handle needs parentheses", lambda hf: hf.projector(handle)),  # type: ignore[arg-type]
    (r"@hf.reaction on handle needs parentheses", lambda hf: hf.reaction(handle)),  # type: ignore[arg-type]
    (r"@hf.job on pay needs parentheses.* write @hf.job\(\)", lambda hf: hf.job(pay)),  # type: ignore[arg-type]
    (r"@hf.cron on no_parameters needs", lambda hf: hf.cron(no_parameters)),  # type: ignore[arg-type]
    (r"@hf.command on pay needs", lambda hf: hf.command(pay, key="pay:{order_id}")),  # type: ignore[arg-type]
    ("@hf.job got 'mail'; its options are given by name", lambda hf: hf.job("mail")),  # type: ignore[arg-type]
    # Options of the wrong type.
    (r"consumer handle: retry is 5; for 5 runs give RetryPolicy.exponential\(attempts=5\)", _consume(retry=5)),
    (r"retry is None; .*RetryPolicy.none\(\) runs once", _consume(retry=None)),
    ("timeout 'soon' cannot be read", _consume(timeout="soon")),
    ("timeout is 0; give a duration above zero", _consume(timeout=0)),
    ("dead_on is <class 'OSError'>; give a tuple", _consume(dead_on=OSError)),
    ("classify is 7", _consume(classify=7)),
    ("keep_runs is 'yes'; give True or False", _consume(keep_runs="yes")),
    ("dedupe is 0; give a duration above zero, or False", _consume(dedupe=0)),
    (
        "direct=, concurrency=, origin=, dead_letters= and trust_identity= are options of a broker",
        _consume(direct=True),
    ),
    ("cron expression is 7", lambda hf: hf.cron(7)),  # type: ignore[arg-type]
    ("tz is 1; give the name", lambda hf: hf.cron("* * * * *", tz=1)),  # type: ignore[arg-type]
    # What would be called without being run.
    ("it contains yield", lambda hf: hf.consumer("a")(generator)),
    ("it contains yield", lambda hf: hf.job()(async_generator)),
    ("it is a job already", lambda hf: hf.consumer("a")(hf.job()(pay))),
    ("decorate a function", lambda hf: hf.consumer("a")(Handles)),
    ("its __call__ is async", lambda hf: hf.consumer("a", name="handles")(Handles())),
    ("has no name;", lambda hf: hf.consumer("a")(Handles())),
    ("it contains yield", lambda hf: hf.reaction("a")(generator)),
]


@pytest.mark.parametrize(("problem", "declare"), REFUSED, ids=[problem for problem, _ in REFUSED])
def test_a_declaration_that_cannot_work_is_refused(
    hf: Holdfast, problem: str, declare: Callable[[Holdfast], Any]
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        declare(hf)
    assert not hf.handlers.keys() - {"pay"}


@pytest.mark.parametrize(
    ("problem", "given"),
    [
        ("the DSN is PosixPath", {"dsn": Path("shop.db")}),
        ("begins with 'shop.db' .* write sqlite:///shop.db", {"dsn": "shop.db"}),
        (r"leave '\+psycopg' out: postgresql://", {"dsn": "postgresql+psycopg://shop"}),
        ("use sqlite:///path or postgresql://", {"dsn": "mysql://shop:secret@host/shop"}),
        ("does not name a file", {"dsn": "sqlite://shop.db"}),
        ("max_payload is '1MB'; give a number of bytes", {"max_payload": "1MB"}),
        ("queues is 7; give a dict", {"queues": 7}),
        (
            r"the policy of queue mail is 5; for 5 runs give RetryPolicy.exponential\(attempts=5\)",
            {"queues": {"mail": 5}},
        ),
        ("the probe of mail is True", {"probes": {"mail": True}}),
        ("alerts is <built-in function print>; give a list", {"alerts": print}),
        ("dedupe is True; .*each handler a duration", {"dedupe": True}),
        (r"webhooks is \{\}; give WebhookOptions\(...\)", {"webhooks": {}}),
        (r"tracing is True; give Tracing\(...\)", {"tracing": True}),
        ("keep 'for ever' cannot be read", {"keep": "for ever"}),
        ("dead_on is <class 'OSError'>; give a tuple", {"dead_on": OSError}),
        ("classify is <function pay .*a plain function", {"classify": pay}),
    ],
)
def test_an_app_with_options_that_cannot_work_is_refused(problem: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Holdfast(**{"dsn": "sqlite:///never-made.db"} | given)


@pytest.mark.parametrize(
    ("problem", "given"),
    [
        ("retry is 5; for 5 runs give", {"retry": 5}),
        ("max_attempts is '5'", {"max_attempts": "5"}),
        ("priority is 9", {"priority": 9}),
        ("queue name '' is invalid", {"queue": ""}),
        ("key '7' is invalid: it is of type int", {"key": 7}),
        ("run_at is .* give a datetime with a time zone", {"run_at": datetime(2030, 1, 1)}),  # noqa: DTZ001
        ("both delay and run_at", {"delay": 1, "run_at": datetime(2030, 1, 1, tzinfo=UTC)}),
    ],
)
def test_a_job_is_not_enqueued_in_a_way_that_cannot_work(hf: Holdfast, problem: str, given: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError, match=problem):
        hf.job()(pay).using(**given)


async def test_a_call_that_does_not_fit_the_parameters_is_not_enqueued(make_app: MakeApp) -> None:
    hf = make_app()
    job = hf.job()(pay)
    with pytest.raises(InvalidPayload, match=r"at \$\.order_id: .*valid integer.*; job pay takes order_id: int"):
        await job.enqueue("abc")  # type: ignore[arg-type]
    with pytest.raises(InvalidPayload, match=r"\$\.order_id"):
        job.sync.enqueue("abc")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"job pay\(order_id: int\): missing a required argument"):
        await job.enqueue()  # type: ignore[call-arg]
    # As the worker would read it: through JSON.
    await job.enqueue("7")  # type: ignore[arg-type]
    positive = hf.job(name="positive")(pay_positive)
    with pytest.raises(InvalidPayload, match="greater than 0"):
        await positive.enqueue(-1)
    await drain(hf)
    assert [found.status for found in await all_of(hf)] == [Status.DELIVERED]


async def test_checking_calls_can_be_left_out(make_app: MakeApp) -> None:
    hf = make_app(validate=False)
    await hf.job()(pay).enqueue("abc")  # type: ignore[arg-type]
    await drain(hf)
    dead = await only(hf)
    assert (dead.status, dead.attempts) == (Status.FAILED, 1)
    assert "job pay takes order_id: int" in str(dead.last_error)


@pytest.mark.parametrize(
    ("problem", "make"),
    [
        (
            "kind 'exponential'; build it with RetryPolicy.exponential",
            lambda: RetryPolicy(kind="exponential", attempts=3),  # type: ignore[arg-type]
        ),
        ("waits '1m'; give a list of waits", lambda: RetryPolicy.schedule("1m")),
        ("waits 5; give a list of waits", lambda: RetryPolicy.schedule(5)),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_cannot_work_is_refused(problem: str, make: Callable[[], Any]) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        make()


async def test_endpoint_options_that_cannot_work_are_refused(hf: Holdfast) -> None:
    with pytest.raises(ConfigurationError, match="retry is 5; for 5 runs give"):
        await hf.webhooks.add("https://acme.test/in", events=["a"], conn=None, retry=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="unexpected keyword argument 'retries'"):
        await hf.webhooks.add("https://acme.test/in", events=["a"], conn=None, retries=5)  # type: ignore[call-arg]


async def test_a_worker_whose_app_has_no_handlers_logs_a_warning(make_app: MakeApp, log: Log) -> None:
    hf = make_app()
    await drain(hf)
    assert [line["log_level"] for line in log if line["event"] == "no handlers"] == ["warning"]
    hf.job(queue="mail")(pay)
    log.clear()
    await drain(hf, queues={"mial": 1, "mail": 1})
    (line,) = [line for line in log if line["event"] == "queues without handlers"]
    assert (line["queues"], line["handler_queues"]) == (["mial"], ["mail"])
    assert line["hint"].endswith("; did you mean mail?")
    log.clear()
    await drain(hf)
    assert not [line for line in log if line["log_level"] == "warning"]


async def test_a_handler_that_returns_a_coroutine_is_a_dead_letter_and_not_a_success(make_app: MakeApp) -> None:
    """A plain decorator around an async function: nothing of it was run."""
    hf = make_app()
    hf.consumer("a")(functools.wraps(handle_async)(lambda payload: handle_async(payload)))
    await hf.publish("a", {}, conn=None)
    await drain(hf)
    failed = await only(hf)
    assert failed.status is Status.FAILED
    assert "consumer handle_async returned a coroutine that was not awaited" in str(failed.last_error)


def wrong(value: Any) -> Any:
    """A value of a type that no type checker would let pass."""
    return value


MISTAKES: list[tuple[str, Callable[[Any], Any]]] = [
    (
        "dict is not an event class; pass an instance .* or a name and a payload",
        lambda hf: hf.sync.publish({"a": 1}, conn=None),
    ),
    ("NoneType is not an event class", lambda hf: hf.sync.publish(None, conn=None)),
    ("publish_many takes a list .* not OrderPlaced", lambda hf: hf.sync.publish_many(OrderPlaced(1), conn=None)),
    ("publish_many takes a list .* not str", lambda hf: hf.sync.publish_many("order.placed", conn=None)),
    ("give tuples of a name and a payload", lambda hf: hf.sync.publish_many([("a", {}, 1)], conn=None)),
    ("headers: is of type list; give a dict", lambda hf: hf.sync.publish("a", {}, conn=None, headers=["x"])),
    ("@event on OrderPlaced lacks its name", lambda hf: event(wrong(OrderPlaced))),
    ("raise version= in @event first", lambda hf: upcast(OrderPlaced, from_version=wrong("1"))),
    ("give minute, hour, day, month and weekday", lambda hf: hf.cron("@daily")),
    ("give each event as an argument", lambda hf: hf.consumer(["a", "b"])),
    (r"include\(\) got .*; give a Router", lambda hf: hf.include(hf.sync)),
    ("job f is a method", lambda hf: hf.job(name="f")(lambda self, a: None)),
    (r"'delay'; write job.using\(delay=...\).enqueue", lambda hf: hf.job()(pay).sync.enqueue(1, delay=5)),
    ("has no group=", lambda hf: hf.consumer("a", source=redis.stream("payments"))(handle)),
    ("redis.stream: name is 7; give text", lambda hf: redis.stream(wrong(7))),
    ("redis stream a: maxlen is 'x'; give a number", lambda hf: redis.stream("a", maxlen=wrong("x"))),
    ("kafka.topic: group is 5; give text", lambda hf: kafka.topic("a", group=wrong(5))),
    (r"kafka.topic\('a'\): options is of type str; give a dict", lambda hf: kafka.topic("a", options=wrong("x"))),
    ("nats.stream: name is 7; give text", lambda hf: nats.stream(wrong(7))),
    ("nats.subject: group is 5; give text", lambda hf: nats.subject("a", group=wrong(5))),
    ("rabbitmq.queue: name is ''; give text", lambda hf: rabbitmq.queue("")),
    ("rabbitmq.exchange: name is 7; give text", lambda hf: rabbitmq.exchange(wrong(7))),
    ("rabbitmq queue a: .* prefetch many; give", lambda hf: rabbitmq.queue("a", prefetch=wrong("many"))),
    (
        "relay out: key is 'id'; give a function",
        lambda hf: hf.relay("a", to=redis.stream("b"), name="out", key=wrong("id")),
    ),
    ("stop is True", lambda hf: asyncio.run(hf.work(stop=True))),
    (r"workers is True; give WorkerOptions\(...\)", lambda hf: asyncio.run(hf.lifespan(workers=True).__aenter__())),
    ("write it as postgresql://", lambda hf: Holdfast("host=localhost dbname=shop")),
    ("scope is 'user'; give a function", lambda hf: IdempotencyMiddleware(wrong(handle), hf=hf, scope=wrong("user"))),
    (
        "hf is 'shop'; give the Holdfast app",
        lambda hf: IdempotencyMiddleware(wrong(handle), hf=wrong("shop"), scope=str),
    ),
    (r"give a name first: @with_retry\('charge'\)", lambda hf: with_retry(wrong(handle_async))),
    ("policy is 5; for 5 runs give", lambda hf: with_retry.sync("charge", policy=wrong(5))),
]


@pytest.mark.parametrize(("problem", "make"), MISTAKES, ids=[problem for problem, _ in MISTAKES])
def test_what_newcomers_get_wrong_says_what_to_write(hf: Holdfast, problem: str, make: Callable[[Any], Any]) -> None:
    with pytest.raises((HoldfastError, TypeError), match=problem):
        make(hf)


async def test_a_handler_that_returns_the_class_of_a_signal_is_a_dead_letter(make_app: MakeApp) -> None:
    hf = make_app()
    await hf.job(name="pay")(lambda: Snooze).enqueue()
    await drain(hf)
    dead = await only(hf)
    assert (dead.status, dead.attempts) == (Status.FAILED, 1)
    assert "job pay returned the class Snooze; return an instance of it" in str(dead.last_error)


def test_a_router_hands_on_what_it_declares_after_it_was_included(hf: Holdfast) -> None:
    inner, outer = Router(), Router()
    hf.include(outer)
    outer.include(inner)
    inner.job(name="pay")(pay)
    inner.cron("0 7 * * *", name="daily")(no_parameters)
    inner.consumer("a")(handle)
    inner.projector("a", name="totals")(handle_async)
    inner.reaction("a")(handle)
    assert sorted(hf.handlers) == ["daily", "handle", "pay", "totals"]
    assert (sorted(hf.cron_schedules), len(hf.reactions)) == (["daily"], 1)


def test_two_handlers_cannot_have_one_name(hf: Holdfast) -> None:
    hf.job(name="send")(pay)
    with pytest.raises(ConfigurationError, match=r"two handlers are named 'send' \(pay and handle\)"):
        hf.consumer("a", name="send")(handle)


@pytest.mark.parametrize(
    ("problem", "given"),
    [
        ("too short", {"lease": WorkerOptions().lease / 1000}),
        ("0 slots", {"concurrency": 0}),
        ("mail has 0 slots", {"queues": {"mail": 0}}),
        ("mail has '5' slots", {"queues": {"mail": "5"}}),
        ("queues is .*; give a dict of slots", {"queues": ["mail"]}),
        ("poll 'often' cannot be read", {"poll": "often"}),
        ("generation is -1", {"generation": -1}),
    ],
)
def test_worker_options_that_cannot_work_are_refused(problem: str, given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        WorkerOptions(**given)


def test_a_generation_from_the_environment_must_be_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_GENERATION", "42")
    assert Holdfast("sqlite:///a.db").generation == 42
    monkeypatch.setenv("HOLDFAST_GENERATION", "v42")
    with pytest.raises(ConfigurationError, match="HOLDFAST_GENERATION is 'v42'"):
        Holdfast("sqlite:///a.db")


async def test_a_router_declares_without_an_app_and_its_jobs_need_one() -> None:
    router = Router()
    job = router.job(name="pay")(pay)
    with pytest.raises(ConfigurationError, match=r"call hf.include\(router\) first"):
        await job.enqueue(1)


def test_an_app_takes_over_what_its_routers_declared(hf: Holdfast) -> None:
    inner, outer = Router(), Router()
    inner.job(name="pay")(pay)
    inner.cron("0 7 * * *", name="daily")(no_parameters)
    outer.reaction("a")(handle)
    outer.include(inner)
    hf.include(outer)
    hf.include(outer)  # twice is as once
    assert sorted(hf.handlers) == ["daily", "pay"]
    assert hf.cron_schedules["daily"] == Schedule(
        "daily", "0 7 * * *", "UTC", hf.cron_schedules["daily"].missed, "default"
    )
    assert len(hf.reactions) == 1


def test_a_handler_of_a_router_gets_the_policy_of_its_queue_unless_it_has_one() -> None:
    patient, own = RetryPolicy.fixed("1m", attempts=9), RetryPolicy.none()
    hf = Holdfast("sqlite:///never-made.db", queues={"mail": patient})
    inner, outer = Router(), Router()
    inner.job(name="pay", queue="mail")(pay)
    inner.job(name="pay_once", queue="mail", retry=own)(pay)
    outer.include(inner)
    hf.include(outer)
    hf.job(name="direct", queue="mail")(pay)
    hf.job(name="elsewhere")(pay)
    assert {name: handler.retry for name, handler in hf.handlers.items()} == {
        "pay": patient,
        "pay_once": own,
        "direct": patient,
        "elsewhere": RetryPolicy.exponential(),
    }


def test_what_using_says_adds_up(hf: Holdfast) -> None:
    job = hf.job(name="pay")(pay).using(delay="5m", priority=0).using(priority=2, max_attempts=7)
    _, message = job._message((1,), {})
    (address,) = message.addressed
    assert (address.delay, address.priority, address.max_attempts) == (WorkerOptions().lease * 10, 2, 7)


def test_a_connection_of_using_is_taken_back_by_none(hf: Holdfast) -> None:
    """As for `publish`, no connection means that it commits on its own."""
    job = hf.job(name="pay")(pay).using(conn="default", delay="5m")
    assert job.using(priority=2)._placement.conn == "default"
    assert job.using(conn=None)._placement.conn is None


def test_a_commands_key_cannot_be_said_again(hf: Holdfast) -> None:
    command = hf.command(key="pay:{order_id}")(pay)
    with pytest.raises(ConfigurationError, match="leave key= out"):
        command.using(key="other")
