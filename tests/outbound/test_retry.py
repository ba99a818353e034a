"""`with_retry`: the same behaviour in both colours and both forms."""

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import LogCapture

from holdfast import (
    Attempt,
    CircuitBreaker,
    CircuitOpen,
    InvalidDuration,
    InvalidKey,
    Outage,
    RetryAfter,
    RetryBudget,
    RetryPolicy,
    Rules,
    TerminalError,
    Verdict,
    correlate,
    with_retry,
)
from holdfast.outbound.retry import DEFAULT_POLICY
from holdfast.testing import no_wait

FAST = RetryPolicy.fixed(0.001, attempts=3)
COLOURS = ["async", "sync"]


class Flaky:
    """Raises what it is given, one after the other, then returns; notes every attempt."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.calls, self.attempts = list(errors), 0, list[Attempt]()

    def plain(self, attempt: Attempt) -> int:
        self.calls += 1
        self.attempts.append(attempt)
        if self.errors:
            raise self.errors.pop(0)
        return self.calls

    async def awaited(self, attempt: Attempt) -> int:
        return self.plain(attempt)


def call(colour: str, flaky: Flaky, **options: Any) -> int:
    options = {"policy": FAST, **options}
    if colour == "sync":
        return with_retry.sync("call", flaky.plain, **options)

    async def main() -> int:
        return await with_retry("call", flaky.awaited, **options)

    return asyncio.run(main())


pytestmark = pytest.mark.parametrize("colour", COLOURS)


def test_a_call_that_succeeds_is_made_once_and_says_nothing(colour: str, lines: LogCapture) -> None:
    flaky = Flaky()
    assert call(colour, flaky) == 1
    assert lines.entries == []


def test_failures_that_can_pass_are_tried_again_until_one_succeeds(colour: str) -> None:
    flaky = Flaky(ConnectionError("a"), TimeoutError("b"))
    assert call(colour, flaky) == 3
    assert [attempt.number for attempt in flaky.attempts] == [1, 2, 3]
    assert {attempt.max_attempts for attempt in flaky.attempts} == {3}


def test_the_last_failure_is_raised_unchanged_with_a_note(colour: str) -> None:
    last = ConnectionError("third")
    flaky = Flaky(ConnectionError("first"), ConnectionError("second"), last)
    with pytest.raises(ConnectionError) as raised:
        call(colour, flaky)
    assert raised.value is last
    assert raised.value.__context__ is None
    (note,) = raised.value.__notes__
    assert note.startswith("call failed at attempt 3 of 3")
    assert "no attempt is left" in note


@pytest.mark.parametrize("error", [TerminalError("no"), Outage("disk"), CircuitOpen("mail", 60)], ids=type)
def test_what_cannot_pass_by_waiting_here_is_raised_at_once(colour: str, error: Exception) -> None:
    flaky = Flaky(error)
    with pytest.raises(type(error)) as raised:
        call(colour, flaky)
    assert raised.value is error
    assert flaky.calls == 1


def test_a_classifier_or_rules_decide_before_what_is_built_in(colour: str) -> None:
    for options in ({"classify": lambda _: Verdict.dead()}, {"classify": Rules(dead_on=(ConnectionError,))}):
        flaky = Flaky(ConnectionError("x"))
        with pytest.raises(ConnectionError):
            call(colour, flaky, **options)
        assert flaky.calls == 1


@pytest.mark.parametrize(
    ("asked", "waited"), [(-5, 0.0), (0, 0.0), (0.01, 0.01), (10**12, 0.02)], ids=["past", "now", "soon", "absurd"]
)
def test_a_wait_that_was_asked_for_is_clamped(colour: str, asked: float, waited: float, lines: LogCapture) -> None:
    policy = RetryPolicy.fixed(0, attempts=2, retry_after_cap=0.02)
    assert call(colour, Flaky(RetryAfter(asked)), policy=policy) == 2
    assert lines.entries[0]["next_attempt_in"] == waited


def test_every_attempt_is_handed_the_same_key(colour: str) -> None:
    flaky = Flaky(ConnectionError(), ConnectionError())
    call(colour, flaky, idempotency_key="order:7:pay:v1")
    assert {attempt.idempotency_key for attempt in flaky.attempts} == {"order:7:pay:v1"}
    with pytest.raises(InvalidKey):
        call(colour, Flaky(), idempotency_key="bad\nkey")


def test_each_failed_attempt_is_a_line_and_so_is_the_happy_end(colour: str, lines: LogCapture) -> None:
    with correlate(request_id="r-1", event="taken"):
        call(
            colour,
            Flaky(ConnectionError("secret-free"), TimeoutError()),
            idempotency_key="k",
            log_fields={"user_id": "u", "level": 3},
        )
    first, second, end = lines.entries
    assert first["event"] == "operation retried"
    expected = {
        "operation": "call",
        "attempt": 1,
        "max_attempts": 3,
        "request_id": "r-1",
        "user_id": "u",
        "header_level": 3,
        "header_event": "taken",
        "idempotency_key": "k",
        "error": "secret-free",
        "error_type": "ConnectionError",
        "retryable": True,
    }
    assert expected.items() <= first.items()
    assert {"next_attempt_at", "next_attempt_in", "latency_ms"} <= set(first)
    assert (second["attempt"], second["error_type"]) == (2, "TimeoutError")
    assert (end["event"], end["attempt"]) == ("operation succeeded after retries", 3)


def test_giving_up_is_a_line_that_says_why(colour: str, lines: LogCapture) -> None:
    with pytest.raises(TerminalError):
        call(colour, Flaky(TerminalError("bad card")))
    (line,) = lines.entries
    assert (line["event"], line["retryable"], line["reason"]) == ("operation failed", False, "it is classified as dead")


def test_no_attempt_begins_after_the_deadline(colour: str) -> None:
    flaky = Flaky(*(ConnectionError() for _ in range(5)))
    with pytest.raises(ConnectionError) as raised:
        call(colour, flaky, policy=RetryPolicy.schedule([0, 60]), deadline=5)
    assert flaky.calls == 2
    assert "after the deadline" in raised.value.__notes__[0]
    first, second = (attempt.remaining for attempt in flaky.attempts)
    assert first is not None
    assert second is not None
    assert second <= first <= 5


def test_a_budget_keeps_retries_a_fraction_of_the_calls(colour: str) -> None:
    budget = RetryBudget(ratio=0.2, per_second=0, burst=2)
    made, notes = 0, list[str]()
    for _ in range(50):
        flaky = Flaky(*(ConnectionError() for _ in range(9)))
        with pytest.raises(ConnectionError) as raised:
            call(colour, flaky, budget=budget)
        made += flaky.calls
        notes += raised.value.__notes__
    assert made <= 50 * 1.2 + 2
    assert "retry budget is used up" in notes[-1]


def test_a_breaker_guards_each_attempt(colour: str) -> None:
    breaker = CircuitBreaker("down", threshold=2)
    flaky = Flaky(*(ConnectionError() for _ in range(9)))
    with pytest.raises(CircuitOpen):
        call(colour, flaky, breaker=breaker)
    assert flaky.calls == 2


def test_the_switch_for_tests_takes_the_waiting_out(colour: str, holdfast_no_wait: None) -> None:
    flaky = Flaky(ConnectionError(), ConnectionError())
    assert call(colour, flaky, policy=RetryPolicy.fixed("1h", attempts=3)) == 3
    with no_wait(attempts=1), pytest.raises(ConnectionError):
        call(colour, Flaky(ConnectionError()))
    assert call(colour, Flaky(ConnectionError())) == 2


def test_functions_of_no_parameter_need_none(colour: str) -> None:
    async def awaited(times: int = 3) -> int:
        return times

    if colour == "sync":
        assert with_retry.sync("call", lambda: 3) == 3
        assert with_retry.sync("call", lambda attempt: attempt.number) == 1
    else:
        assert asyncio.run(with_retry("call", awaited)) == 3
        assert asyncio.run(with_retry("call", lambda: awaited())) == 3


def test_a_decorated_function_stays_what_it_is_and_may_ask_for_its_attempt(colour: str) -> None:
    seen: list[Attempt] = []

    def key_of(order: int, *, note: str = "") -> str:
        return f"order:{order}"

    def run(attempt: Attempt, order: int, note: str) -> str:
        seen.append(attempt)
        if len(seen) < 2:
            raise ConnectionError
        return f"{order}{note}"

    pay: Callable[..., Any]
    if colour == "sync":

        @with_retry.sync("pay", policy=FAST, idempotency_key=key_of)
        def pay(attempt: Attempt, order: int, *, note: str = "") -> str:
            """Pays."""
            return run(attempt, order, note)

        assert pay(7, note="!") == "7!"
    else:

        @with_retry("pay", policy=FAST, idempotency_key=key_of)
        async def pay(attempt: Attempt, order: int, *, note: str = "") -> str:
            """Pays."""
            return run(attempt, order, note)

        assert inspect.iscoroutinefunction(pay)
        assert asyncio.run(pay(7, note="!")) == "7!"
    assert pay.__doc__ == "Pays."
    assert [attempt.idempotency_key for attempt in seen] == ["order:7", "order:7"]


def test_the_wrong_colour_names_the_right_call(colour: str) -> None:
    async def awaited() -> int:
        return 1

    calls = 0

    def plain() -> int:
        nonlocal calls
        calls += 1
        return 1

    if colour == "sync":
        with pytest.raises(TypeError, match="await with_retry"):
            _ = with_retry.sync("call", awaited)
        with pytest.raises(TypeError, match="@with_retry"):
            with_retry.sync("call")(awaited)
    else:
        with pytest.raises(TypeError, match=r"with_retry\.sync"):
            asyncio.run(with_retry("call", plain))  # type: ignore[arg-type]
        assert calls == 1
        with pytest.raises(TypeError, match=r"@with_retry\.sync"):
            with_retry("call")(plain)  # type: ignore[arg-type]


def test_options_are_checked_before_anything_is_called(colour: str) -> None:
    flaky = Flaky()
    for wrong in ("soon", -1.0, True):
        with pytest.raises(InvalidDuration):
            call(colour, flaky, timeout=wrong)
    with pytest.raises(InvalidDuration):
        call(colour, flaky, deadline="soon")
    assert flaky.calls == 0


def test_an_attempt_that_hangs_is_ended_and_tried_again(colour: str) -> None:
    if colour == "sync":
        seen = []
        with_retry.sync("call", lambda attempt: seen.append(attempt.remaining), timeout=0.5)
        assert 0 < seen[0] <= 0.5  # nothing can end a plain function: it receives its time limit
        return
    calls = 0

    async def hang() -> str:
        nonlocal calls
        calls += 1
        if calls == 1:
            await asyncio.sleep(60)
        return "there"

    assert asyncio.run(with_retry("call", hang, timeout=0.02, policy=FAST)) == "there"


def test_by_default_it_is_three_attempts_from_a_quarter_second_to_five(colour: str) -> None:
    assert [str(wait) for wait in DEFAULT_POLICY.preview()] == ["0s..250ms", "0s..500ms"]
    assert DEFAULT_POLICY.cap.total_seconds() == 5
    seen: list[float | None] = []
    with_retry.sync("call", lambda attempt: seen.append(attempt.remaining))
    assert seen[0] == pytest.approx(10, abs=0.5)


@pytest.mark.parametrize("name", ["reason", "next_attempt_in", "elapsed_ms", "operation"])
def test_a_field_of_any_name_breaks_nothing(colour: str, name: str, lines: LogCapture) -> None:
    assert call(colour, Flaky(ConnectionError()), log_fields={name: "mine"}) == 2
    with pytest.raises(ConnectionError):
        call(colour, Flaky(ConnectionError()), log_fields={name: "mine"}, policy=RetryPolicy.none())
    assert {line["operation"] for line in lines.entries} == {"call"}
