"""Declarations that cannot work are refused when they are made, with a word on what would do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast import ConfigurationError, Holdfast, RetryPolicy, Router, WorkerOptions, event
from holdfast.engine.cron import Schedule


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


def no_parameters() -> None: ...


def many(*numbers: int) -> None: ...


async def pay(order_id: int) -> None: ...


REFUSED: list[tuple[str, Callable[[Holdfast], Any]]] = [
    (r"must take \(payload\)", lambda hf: hf.consumer("a")(no_parameters)),
    ("cannot be stored by name", lambda hf: hf.job()(many)),
    ("names no event", lambda hf: hf.consumer()(handle)),
    ("neither an event class nor a name", lambda hf: hf.consumer(7)(handle)),
    ("one event class at a time", lambda hf: hf.consumer(OrderPlaced, OrderPaid)(handle)),
    ("'beginning' or 'now'", lambda hf: hf.consumer("a", start="later")(handle)),
    ("key 'fixed' names nothing", lambda hf: hf.command(key="fixed")(pay)),
    ("names amount", lambda hf: hf.command(key="pay:{amount}")(pay)),
    ("takes no parameters", lambda hf: hf.cron("* * * * *")(pay)),
    ("cannot be read", lambda hf: hf.cron("61 * * * *")(no_parameters)),
    ("cannot be read", lambda hf: hf.cron("every day")(no_parameters)),
    ("cannot be read", lambda hf: hf.cron("0 0 30 2 *")(no_parameters)),
    ("time zone 'Mars/Olympus'", lambda hf: hf.cron("* * * * *", tz="Mars/Olympus")(no_parameters)),
    ("time zone ''", lambda hf: hf.cron("* * * * *", tz="")(no_parameters)),
    (r"time zone '\.\./etc/passwd'", lambda hf: hf.cron("* * * * *", tz="../etc/passwd")(no_parameters)),
    ("use one of last, all, skip", lambda hf: hf.cron("* * * * *", missed="never")(no_parameters)),
    ("OSError stands in dead_on and in retry_on", lambda hf: hf.job(dead_on=(OSError,), retry_on=(OSError,))(pay)),
    ("priority is 4", lambda hf: hf.job(priority=4)(pay)),
]


@pytest.mark.parametrize(("problem", "declare"), REFUSED, ids=[problem for problem, _ in REFUSED])
def test_a_declaration_that_cannot_work_is_refused(
    hf: Holdfast, problem: str, declare: Callable[[Holdfast], Any]
) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        declare(hf)


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
    assert hf.schedules["daily"] == Schedule("daily", "0 7 * * *", "UTC", hf.schedules["daily"].missed, "default")
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


def test_a_commands_key_cannot_be_said_again(hf: Holdfast) -> None:
    command = hf.command(key="pay:{order_id}")(pay)
    with pytest.raises(ConfigurationError, match="leave key= out"):
        command.using(key="other")
