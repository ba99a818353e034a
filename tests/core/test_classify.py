"""Every exception becomes one of four verdicts, in an order that is known in advance."""

import email.message
import json
import sqlite3
import subprocess
import sys
import urllib.error
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import asyncpg
import django.db.utils
import orjson
import psycopg
import psycopg.errors
import pydantic
import pydantic_core
import pytest
import sqlalchemy.exc
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import (
    CircuitOpen,
    ConfigurationError,
    DecryptionFailed,
    HoldfastError,
    InvalidDuration,
    InvalidKey,
    InvalidName,
    InvalidPayload,
    KeyConflict,
    NoTransaction,
    Outage,
    PayloadTooLarge,
    RetryAfter,
    TerminalError,
    UnsupportedConnection,
)
from holdfast.core.failures.classify import Rules, classify
from holdfast.core.failures.http import verdict_for
from holdfast.core.failures.verdict import Verdict, VerdictKind

NOW = datetime(2026, 11, 15, 8, 0, 0, tzinfo=UTC)
RETRY, DEAD = Verdict.retry(), Verdict.dead()
SECONDS_5 = timedelta(seconds=5)


class Domain(Exception):
    pass


class Narrow(Domain):
    pass


class Narrowest(Narrow):
    pass


class Order(pydantic.BaseModel):
    id: int


def caught(run: Any) -> BaseException:
    try:
        run()
    except BaseException as exc:  # noqa: BLE001
        return exc
    raise AssertionError


def rewrapped() -> None:
    try:
        Order(id="x")  # type: ignore[arg-type]
    except pydantic.ValidationError as exc:
        raise ValueError("bad order") from exc


def wrapped(orig: BaseException, kind: type[sqlalchemy.exc.DBAPIError] = sqlalchemy.exc.DBAPIError) -> BaseException:
    return kind("insert …", {}, orig)


def carrying(**attributes: object) -> Exception:
    exc = Exception("carries")
    vars(exc).update(attributes)
    return exc


def answer(status: int, **headers: str) -> SimpleNamespace:
    return SimpleNamespace(
        status_code=status, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def http_error(status: int, retry_after: str | None = None) -> urllib.error.HTTPError:
    headers = email.message.Message()
    if retry_after:
        headers["Retry-After"] = retry_after
    return urllib.error.HTTPError("http://x", status, "x", headers, None)


def with_status(status: int) -> Exception:
    """Dead by its class: only a status that is one of HTTP's can make it retry."""
    exc = sqlite3.IntegrityError("x")
    vars(exc).update(status=status)
    return exc


def chained(exc: BaseException, cause: BaseException) -> None:
    raise exc from cause


class Moody(Exception):
    """Like httpx's request errors: reading an attribute raises."""

    @property
    def response(self) -> object:
        raise RuntimeError("not set")

    status = status_code = code = response


class HTTPException(Exception):
    """Like werkzeug's: the status is in `code`."""

    code = 404


BUILT_IN = [
    (TerminalError("x"), DEAD),
    (RetryAfter(5), Verdict.retry(SECONDS_5)),
    (RetryAfter(-5), Verdict.retry(timedelta(0))),
    (Outage("mail"), Verdict.block("mail")),
    (CircuitOpen("acme", 5), Verdict.park("acme", SECONDS_5)),
    (CircuitOpen("acme", NOW), Verdict.park("acme", NOW)),
    (caught(lambda: Order(id="x")), DEAD),  # type: ignore[arg-type]
    (caught(lambda: pydantic.TypeAdapter(int).validate_json("{")), DEAD),
    (caught(rewrapped), DEAD),
    (pydantic_core.PydanticCustomError("odd", "never raised"), DEAD),
    (InvalidPayload("$", "x"), DEAD),
    (PayloadTooLarge(2, 1), DEAD),
    (ConfigurationError("x"), DEAD),
    (InvalidDuration("timeout", "soon", "cannot be read"), DEAD),
    (InvalidKey("k", "x"), DEAD),
    (InvalidName("queue", "a b", "x", "y"), DEAD),
    (KeyConflict("app", "k", UUID(int=1)), DEAD),
    (DecryptionFailed("2026-05", "message 7"), DEAD),
    (NoTransaction("sqlite3 Connection"), DEAD),
    (UnsupportedConnection("int"), DEAD),
    (caught(lambda: json.loads("{")), DEAD),
    (caught(lambda: orjson.loads("{")), DEAD),
    (sqlite3.IntegrityError("x"), DEAD),
    (psycopg.IntegrityError("x"), DEAD),
    (psycopg.errors.UniqueViolation("x"), DEAD),
    (asyncpg.UniqueViolationError("x"), DEAD),
    (django.db.utils.IntegrityError("x"), DEAD),
    (wrapped(sqlite3.IntegrityError("x"), sqlalchemy.exc.IntegrityError), DEAD),
    (wrapped(asyncpg.UniqueViolationError("x")), DEAD),
    (wrapped(wrapped(sqlite3.IntegrityError("x"))), DEAD),
    (wrapped(sqlite3.OperationalError("x")), RETRY),
    (sqlite3.OperationalError("locked"), RETRY),
    (psycopg.OperationalError("x"), RETRY),
    (psycopg.errors.SerializationFailure("x"), RETRY),
    (psycopg.InterfaceError("x"), RETRY),
    (ConnectionError("x"), RETRY),
    (ConnectionResetError("x"), RETRY),
    (TimeoutError("x"), RETRY),
    (TimeoutError("x"), RETRY),
    (OSError("x"), RETRY),
    (ValueError("a plain one"), RETRY),
    (KeyError("x"), RETRY),
    (HoldfastError("x"), RETRY),
    (Exception(), RETRY),
    (SystemExit(404), RETRY),
    (Moody(), RETRY),
    (HTTPException(), DEAD),
    (http_error(503), RETRY),
    (http_error(503, "5"), Verdict.retry(SECONDS_5)),
    (http_error(404), DEAD),
    (carrying(status_code=422), DEAD),
    (carrying(status=401), DEAD),
    (carrying(status=503, headers={"Retry-After": "5"}), Verdict.retry(SECONDS_5)),
    (carrying(response=answer(400)), DEAD),
    (carrying(response=SimpleNamespace(status=400)), DEAD),
    (carrying(response=answer(429, Retry_After="5")), Verdict.retry(SECONDS_5)),
    (carrying(response=answer(429, retry_after="5")), Verdict.retry(SECONDS_5)),
    (carrying(response=answer(409)), DEAD),
    (carrying(response=answer(409, Retry_After="5")), Verdict.retry(SECONDS_5)),
    (carrying(response=answer(429, Retry_After="1000000000000")), Verdict.retry(timedelta(days=36_525))),
    (carrying(response=answer(200)), RETRY),
    (carrying(code=404), RETRY),
    (carrying(status_code=True), RETRY),
    (carrying(status_code="404"), RETRY),
    (carrying(status_code=7), RETRY),
    (carrying(status=503, headers=7), RETRY),
    (carrying(status=503, headers=SimpleNamespace(get=lambda name: 1 / 0)), RETRY),
    (with_status(99), DEAD),
    (with_status(100), RETRY),
    (with_status(599), RETRY),
    (with_status(600), DEAD),
    (caught(lambda: int("x")), RETRY),
    (caught(lambda: chained(ValueError("x"), KeyError("y"))), RETRY),
    (caught(lambda: chained(KeyError("x"), caught(lambda: Order(id="x")))), RETRY),  # type: ignore[arg-type]
    (pydantic.errors.PydanticUserError("x", code=None), RETRY),
    (wrapped("not an exception"), RETRY),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("exc", "verdict"), BUILT_IN, ids=range(len(BUILT_IN)))
def test_what_is_built_in(exc: BaseException, verdict: Verdict) -> None:
    assert classify(exc, now=NOW) == verdict
    assert classify(exc, Rules(), Rules(), now=NOW) == verdict


def test_a_plain_value_error_raised_inside_pydantic_is_dead() -> None:
    scope: dict[str, Any] = {"__name__": "pydantic.something"}
    exec("def check():\n    raise ValueError('bad')", scope)  # noqa: S102
    assert classify(caught(lambda: scope["check"]())) == DEAD


def test_a_class_that_only_looks_like_pydantics_is_not_dead() -> None:
    class ValidationError(ValueError):
        pass

    assert classify(ValidationError("x")) == RETRY


def test_the_nearest_class_decides_between_two_that_are_built_in() -> None:
    class IntegrityError(OSError):
        pass

    class Late(OSError, sqlite3.IntegrityError):
        pass

    assert classify(IntegrityError()) == DEAD
    assert classify(Late()) == RETRY


def test_a_status_counts_more_than_the_class_that_carries_it() -> None:
    assert isinstance(http_error(404), OSError)
    assert classify(http_error(404)) == DEAD


def test_a_retry_after_date_counts_from_the_answers_own_date() -> None:
    date, later = "Sun, 15 Nov 2026 08:00:00 GMT", "Sun, 15 Nov 2026 08:00:05 GMT"
    wrong_clock = NOW + timedelta(hours=1)
    exc = carrying(response=answer(503, Retry_After=later, Date=date))
    assert classify(exc, now=wrong_clock) == Verdict.retry(SECONDS_5)
    assert classify(exc) == Verdict.retry(SECONDS_5)


def test_a_retry_after_date_without_any_clock_leaves_the_wait_to_the_policy() -> None:
    exc = carrying(response=answer(503, Retry_After="Sun, 15 Nov 2026 08:00:05 GMT"))
    assert classify(exc) == RETRY
    assert classify(exc, now=NOW) == Verdict.retry(SECONDS_5)


@pytest.mark.parametrize(
    ("rules", "exc", "verdict"),
    [
        (Rules(dead_on=(Domain,)), Narrow(), DEAD),
        (Rules(dead_on=(Domain,), retry_on=(Narrow,)), Narrow(), RETRY),
        (Rules(dead_on=(Domain,), retry_on=(Narrow,)), Narrowest(), RETRY),
        (Rules(dead_on=(Narrow,), retry_on=(Domain,)), Domain(), RETRY),
        (Rules(dead_on=(Narrowest, Domain), retry_on=(Narrow,)), Narrowest(), DEAD),
        (Rules(retry_on=(sqlite3.IntegrityError,)), sqlite3.IntegrityError(), RETRY),
        (Rules(dead_on=(ConnectionError,)), ConnectionResetError(), DEAD),
        (Rules(retry_on=(Exception,)), carrying(response=answer(404)), RETRY),
        (Rules(retry_on=(Exception,)), carrying(response=answer(404, Retry_After="5")), Verdict.retry(SECONDS_5)),
        (Rules(block_on=(ConnectionError,)), ConnectionError(), Verdict.block("ConnectionError")),
        (Rules(block_on=(Exception,)), carrying(resource="mail"), Verdict.block("mail")),
        (Rules(park_on=(Exception,)), carrying(name="acme"), Verdict.park("acme")),
        (Rules(park_on=(Exception,)), carrying(status=503, headers={"Retry-After": "5"}), Verdict.park("Exception", SECONDS_5)),
        (Rules(park_on=(RetryAfter,)), RetryAfter(5), Verdict.park("holdfast.RetryAfter", SECONDS_5)),
        (Rules(park_on=(CircuitOpen,)), CircuitOpen("acme", 5), Verdict.park("acme", SECONDS_5)),
        (Rules(block_on=(Exception,)), carrying(resource=7, name="acme"), Verdict.block("acme")),
        (Rules(block_on=(Exception,)), carrying(resource=""), Verdict.block("Exception")),
        (Rules(retry_on=(CircuitOpen,)), CircuitOpen("acme", NOW), RETRY),
        (Rules(dead_on=(RetryAfter,)), RetryAfter(5), DEAD),
    ],
    ids=range(19),
)  # fmt: skip
def test_a_list_counts_more_than_what_is_built_in(rules: Rules, exc: BaseException, verdict: Verdict) -> None:
    assert classify(exc, rules) == verdict
    assert classify(exc, Rules(), rules) == verdict


def test_the_handlers_lists_override_those_of_the_app() -> None:
    assert classify(Narrow(), Rules(dead_on=(Domain,)), Rules(retry_on=(Narrow,))) == DEAD


@pytest.mark.parametrize(
    ("signal", "verdict"), [(TerminalError("x"), DEAD), (Outage("m"), Verdict.block("m")), (RetryAfter(5), Verdict.retry(SECONDS_5))]
)  # fmt: skip
@pytest.mark.parametrize("rules", [Rules(retry_on=(Exception,)), Rules(dead_on=(HoldfastError, BaseException))])
def test_a_signal_is_not_overruled_by_a_list_that_means_everything(signal, verdict: Verdict, rules: Rules) -> None:
    assert classify(signal, rules) == verdict


def test_a_function_counts_more_than_any_list() -> None:
    handler = Rules(dead_on=(Domain,), classify=lambda exc: None)
    app = Rules(classify=lambda exc: Verdict.block("x") if isinstance(exc, Domain) else None)
    assert classify(Domain(), handler, app) == Verdict.block("x")
    assert classify(KeyError(), handler, app) == RETRY


def test_the_handlers_function_is_asked_before_the_apps() -> None:
    assert classify(Domain(), Rules(classify=lambda exc: DEAD), Rules(classify=lambda exc: RETRY)) == DEAD


def test_rules_that_say_nothing_leave_no_note() -> None:
    exc = Domain()
    classify(exc, Rules(), Rules(classify=lambda exc: None))
    assert not hasattr(exc, "__notes__")


def test_a_function_may_overrule_a_signal() -> None:
    assert classify(TerminalError("x"), Rules(classify=lambda exc: RETRY)) == RETRY


def test_a_function_that_raises_is_passed_over_and_leaves_a_note() -> None:
    def broken(exc: BaseException) -> Verdict | None:
        raise ZeroDivisionError("oops")

    exc = Domain()
    assert classify(exc, Rules(classify=broken, dead_on=(Domain,))) == DEAD
    assert "ZeroDivisionError: oops" in exc.__notes__[0]


@pytest.mark.parametrize("answer", [True, "dead", VerdictKind.DEAD, Verdict])
def test_a_function_that_returns_something_else_is_an_error_that_names_its_owner(answer: Any) -> None:
    exc = Domain()
    problem = r"classify of consumer billing returned .*; return Verdict.retry\(\), Verdict.dead\(\)"
    with pytest.raises(ConfigurationError, match=problem) as wrong:
        classify(exc, Rules(classify=lambda exc: answer, owner="consumer billing"))
    assert wrong.value.__cause__ is exc


@pytest.mark.parametrize(
    ("lists", "words"),
    [
        ({"dead_on": (Domain,), "retry_on": (Domain,)}, "dead_on and retry_on"),
        ({"block_on": (Domain,), "park_on": (Narrow, Domain)}, "block_on and park_on"),
        ({"dead_on": Domain}, "give a tuple"),
        ({"dead_on": [Domain]}, "give a tuple"),
        ({"dead_on": ("Domain",)}, "not an exception class"),
        ({"dead_on": (int,)}, "not an exception class"),
        ({"dead_on": (Domain(),)}, "not an exception class"),
        ({"classify": 7}, "give a plain function"),
    ],
)
def test_rules_that_contradict_themselves_are_refused_at_once(lists: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        Rules(**lists)


def test_a_class_may_stand_twice_in_one_list() -> None:
    assert classify(Domain(), Rules(dead_on=(Domain, Domain))) == DEAD


def group(*members: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("g", members)


@pytest.mark.parametrize(
    ("exc", "verdict"),
    [
        (group(TerminalError("a"), sqlite3.IntegrityError()), DEAD),
        (group(TerminalError("a"), KeyError()), RETRY),
        (group(KeyError(), Outage("mail"), CircuitOpen("acme", 5)), Verdict.block("mail")),
        (group(CircuitOpen("acme", 5), Outage("mail")), Verdict.block("mail")),
        (group(TerminalError("a"), CircuitOpen("acme", 5)), Verdict.park("acme", SECONDS_5)),
        (group(RetryAfter(1), RetryAfter(5), KeyError()), Verdict.retry(SECONDS_5)),
        (group(group(TerminalError("a")), group(group(TerminalError("b")))), DEAD),
        (group(group(TerminalError("a")), group(group(KeyError("b")))), RETRY),
    ],
    ids=range(8),
)
def test_a_group_is_judged_by_its_members(exc: BaseException, verdict: Verdict) -> None:
    assert classify(exc) == verdict
    assert classify(exc, Rules(dead_on=(Narrow,))) == verdict


def test_rules_reach_the_members_of_a_group() -> None:
    rules = Rules(dead_on=(Domain,), classify=lambda exc: DEAD if isinstance(exc, KeyError) else None)
    assert classify(group(Narrow(), KeyError()), rules) == DEAD
    assert classify(group(Narrow(), ValueError()), rules) == RETRY


def test_a_list_may_name_groups_themselves() -> None:
    assert classify(group(KeyError()), Rules(dead_on=(ExceptionGroup,))) == DEAD
    assert classify(group(KeyError()), Rules(dead_on=(Exception,), retry_on=(KeyError,))) == RETRY


def test_a_group_nested_without_end_is_judged() -> None:
    exc: Exception = TerminalError("core")
    for _ in range(5_000):
        exc = group(exc)
    assert classify(exc) == DEAD


def test_a_group_that_hides_its_members_retries() -> None:
    class Hollow(ExceptionGroup[Exception]):
        exceptions = ()

    assert classify(Hollow("g", [TerminalError("x")])) == RETRY


def test_the_name_of_what_is_out_can_be_stored() -> None:
    verdict = classify(Outage("mail\x00\ud800" + "x" * 1_000))
    assert verdict.resource is not None
    assert verdict.resource.startswith("mail\ufffd\ufffd")
    assert len(verdict.resource) <= 200
    assert classify(CircuitOpen("a\x00", 5)).resource == "a\ufffd"


@given(
    st.sampled_from([exc for exc, _ in BUILT_IN]), st.lists(st.sampled_from([Domain, OSError, ValueError]), unique=True)
)
def test_every_exception_has_exactly_one_verdict(exc: BaseException, dead: list[type[BaseException]]) -> None:
    verdict = classify(exc, Rules(dead_on=tuple(dead)), now=NOW)
    assert verdict.kind in VerdictKind
    assert classify(exc, Rules(dead_on=tuple(dead)), now=NOW) == verdict


@given(st.integers(100, 599))
def test_a_carried_status_means_what_the_answer_means(status: int) -> None:
    assert classify(carrying(status_code=status)) == (verdict_for(status, None, None) or RETRY)


def test_classifying_imports_nothing_that_is_not_there_already() -> None:
    script = (
        "import sys; from holdfast.core.failures.classify import classify; classify(ValueError('x'));"
        "print([m for m in ('pydantic', 'pydantic_core', 'sqlalchemy', 'psycopg', 'asyncio') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
