"""The decision: deterministic, within the budget, and the same for a failure and an expired lease."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import get_args
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.change import (
    Block,
    Change,
    DeadLetter,
    Deliver,
    Discard,
    Park,
    Postpone,
    Release,
    Replay,
    Retry,
    Suspend,
)
from holdfast.core.decide import MAX_HOLDS, PARK_DELAY, budget, decide, suspect_after
from holdfast.core.delivery import Delivery, Status
from holdfast.core.errors import Cancel, CircuitOpen, Outage, RetryAfter, TerminalError
from holdfast.core.errors import Snooze as SnoozeSignal
from holdfast.core.failures.classify import Rules
from holdfast.core.failures.report import CUT_OFF, LEASE_EXPIRED, MESSAGE_LIMIT, report
from holdfast.core.failures.verdict import Verdict, VerdictKind
from holdfast.core.outcome import (
    Cancelled,
    Failed,
    LeaseExpired,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    Suspended,
    error_of,
    outcome_of,
)
from holdfast.core.retry import RetryPolicy

ID = UUID("01890000-0000-7000-8000-000000000001")
AT = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = RetryPolicy.exponential(attempts=3, base=8, jitter="none")
DELIVERY = Delivery(
    id=ID, message_id=ID, consumer="billing", status=Status.IN_FLIGHT, run_at=AT, created_at=AT, attempts=1
)
ERROR = report(ValueError("x"))
SECOND = timedelta(seconds=1)


def failed(verdict: Verdict, *, held: bool = False) -> Failed:
    return Failed(ERROR, verdict, held)


durations = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=400))
verdicts = st.one_of(
    st.builds(Verdict.retry, st.none() | st.timedeltas()),
    st.builds(Verdict.dead),
    st.builds(Verdict.block, st.just("mail")),
    st.builds(Verdict.park, st.just("acme"), st.none() | durations | st.just(AT)),
)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Succeeded),
    st.builds(failed, verdicts, held=st.booleans()),
    st.builds(Snoozed, durations),
    st.builds(Cancelled, st.text()),
    st.builds(LeaseExpired),
    st.builds(Released, st.booleans()),
    st.builds(Suspended),
)
deliveries = st.builds(
    replace,
    st.just(DELIVERY),
    attempts=st.integers(0, 12),
    max_attempts=st.none() | st.integers(1, 12),
    holds=st.integers(0, 25),
    expiries=st.integers(0, 5),
)
policies = st.sampled_from(
    [POLICY, RetryPolicy.none(), RetryPolicy.exponential(attempts=10), RetryPolicy.schedule([0, 1, 2]), RetryPolicy.polynomial()]
)  # fmt: skip
randoms = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("outcome", "change"),
    [
        (Succeeded(), Deliver()),
        (failed(Verdict.retry()), Retry(8 * SECOND)),
        (failed(Verdict.retry(5 * SECOND)), Retry(5 * SECOND)),
        (failed(Verdict.retry(timedelta(days=9))), Retry(timedelta(hours=1))),
        (failed(Verdict.retry(-SECOND)), Retry(timedelta(0))),
        (failed(Verdict.dead()), DeadLetter()),
        (failed(Verdict.park("acme", 5 * SECOND)), Park("acme", 5 * SECOND, None)),
        (failed(Verdict.park("acme", AT)), Park("acme", None, AT)),
        (failed(Verdict.park("acme")), Park("acme", PARK_DELAY, None)),
        (failed(Verdict.block("mail")), Block("mail", 2.5 * SECOND, held=False)),
        (failed(Verdict.block("mail"), held=True), Block("mail", 2.5 * SECOND, held=True)),
        (LeaseExpired(), Retry(8 * SECOND)),
        (Snoozed(90 * SECOND), Postpone(90 * SECOND)),
        (Cancelled("no stock"), Discard("no stock")),
        (Released(started=False), Release(timedelta(0), held=False)),
        (Released(started=True), Release(timedelta(0), held=True)),
    ],
)
def test_each_outcome_has_its_change(outcome: Outcome, change: Change) -> None:
    assert decide(DELIVERY, outcome, POLICY, 0.0) == change


def test_a_verdict_without_a_name_is_still_written() -> None:
    assert decide(DELIVERY, failed(Verdict(VerdictKind.PARK)), POLICY, 0.0) == Park("", PARK_DELAY, None)
    assert decide(DELIVERY, failed(Verdict(VerdictKind.BLOCK)), POLICY, 0.0) == Block("", 2.5 * SECOND, held=False)


def test_a_time_counts_more_than_a_delay_for_a_parked_delivery() -> None:
    both = Verdict(VerdictKind.PARK, after=SECOND, until=AT, resource="acme")
    assert decide(DELIVERY, failed(both), POLICY, 0.0) == Park("acme", None, AT)


@pytest.mark.parametrize("outcome", [failed(Verdict.retry()), failed(Verdict.retry(SECOND)), LeaseExpired()])
@pytest.mark.parametrize(
    ("attempts", "max_attempts", "ends"),
    [(1, None, False), (2, None, False), (3, None, True), (4, None, True), (1, 1, True), (3, 4, False), (4, 4, True)],
)
def test_attempts_meet_the_budget_alike_for_failures_and_expired_leases(
    outcome: Outcome, attempts: int, max_attempts: int | None, ends: bool
) -> None:
    delivery = replace(DELIVERY, attempts=attempts, max_attempts=max_attempts)
    assert isinstance(decide(delivery, outcome, POLICY, 0.0), DeadLetter if ends else Retry)


@pytest.mark.parametrize(("attempts", "wait"), [(1, 8), (2, 16)])
def test_the_wait_follows_the_number_of_the_run_that_failed(attempts: int, wait: int) -> None:
    change = decide(replace(DELIVERY, attempts=attempts), failed(Verdict.retry()), POLICY, 0.0)
    assert change == Retry(wait * SECOND)


def test_the_random_number_picks_the_wait() -> None:
    policy = RetryPolicy.exponential(base=8)
    assert decide(DELIVERY, LeaseExpired(), policy, 0.25) == Retry(2 * SECOND)
    assert decide(DELIVERY, LeaseExpired(), policy, 0.5) == Retry(4 * SECOND)


@given(deliveries, outcomes, policies, randoms)
def test_the_same_arguments_give_the_same_change(delivery, outcome, policy, random) -> None:
    assert decide(delivery, outcome, policy, random) == decide(delivery, outcome, policy, random)


@given(deliveries, policies, randoms, st.booleans())
def test_a_dead_verdict_never_retries(delivery, policy, random, held: bool) -> None:
    assert decide(delivery, failed(Verdict.dead(), held=held), policy, random) == DeadLetter()


@given(deliveries, outcomes, policies, randoms)
def test_a_spent_budget_is_never_run_again_at_its_own_cost(delivery, outcome, policy, random) -> None:
    change = decide(delivery, outcome, policy, random)
    if delivery.attempts >= budget(delivery, policy):
        assert not isinstance(change, Retry)


@given(deliveries, outcomes, policies, randoms)
def test_work_is_given_up_only_when_it_is_dead_or_its_budget_is_spent(delivery, outcome, policy, random) -> None:
    change = decide(delivery, outcome, policy, random)
    if isinstance(change, DeadLetter):
        dead = isinstance(outcome, Failed) and outcome.verdict.kind is VerdictKind.DEAD
        assert dead or delivery.attempts >= budget(delivery, policy)


@given(deliveries, outcomes, policies, randoms)
def test_no_wait_is_negative(delivery, outcome, policy, random) -> None:
    delay = getattr(decide(delivery, outcome, policy, random), "delay", None)
    assert delay is None or delay >= timedelta(0)


@given(deliveries, policies, randoms, st.sampled_from([Verdict.block("mail"), Verdict.park("acme", SECOND)]))
def test_a_true_outage_may_last(delivery, policy, random, verdict: Verdict) -> None:
    change = decide(delivery, failed(verdict), policy, random)
    assert isinstance(change, Block | Park)
    assert change.returns_attempt


@pytest.mark.parametrize("outcome", [failed(Verdict.block("mail"), held=True), Released(started=True)])
def test_holds_while_the_resource_is_well_are_capped(outcome: Outcome) -> None:
    at_cap = replace(DELIVERY, holds=MAX_HOLDS)
    assert decide(replace(DELIVERY, holds=MAX_HOLDS - 1), outcome, POLICY, 0.0).returns_attempt
    assert decide(at_cap, outcome, POLICY, 0.0) == Retry(8 * SECOND)
    assert decide(replace(at_cap, attempts=3), outcome, POLICY, 0.0) == DeadLetter()


def test_work_that_was_not_started_is_released_any_number_of_times() -> None:
    change = decide(replace(DELIVERY, holds=99, attempts=99), Released(started=False), POLICY, 0.0)
    assert change == Release(timedelta(0), held=False)


@given(deliveries, randoms)
def test_poison_that_looks_like_an_outage_comes_to_an_end(delivery, random) -> None:
    for _ in range(MAX_HOLDS + 12):
        delivery = replace(delivery, attempts=delivery.attempts + 1)
        change = decide(delivery, failed(Verdict.block("mail"), held=True), POLICY, random)
        if isinstance(change, DeadLetter):
            return
        held = isinstance(change, Block) and change.held
        delivery = replace(delivery, attempts=delivery.attempts - change.returns_attempt, holds=delivery.holds + held)
    raise AssertionError("still held")


def test_holds_wait_longer_and_longer_within_bounds() -> None:
    outcome = failed(Verdict.block("mail"), held=True)
    waits = []
    for holds in range(MAX_HOLDS):
        change = decide(replace(DELIVERY, holds=holds), outcome, POLICY, 0.0)
        assert isinstance(change, Block)
        waits.append(change.delay)
    assert waits == sorted(waits)
    assert waits[0] > timedelta(0)
    assert waits[-1] <= timedelta(minutes=5)


@pytest.mark.parametrize(("expiries", "suspect"), [(0, False), (1, False), (2, True), (3, True)])
def test_a_second_expiry_in_a_row_makes_a_suspect(expiries: int, suspect: bool) -> None:
    assert suspect_after(expiries) is suspect


CHANGES: list[tuple[Change, str, Status, bool]] = [
    (Deliver(), "deliver", Status.DELIVERED, False),
    (Retry(SECOND), "retry", Status.PENDING, False),
    (Postpone(SECOND), "snooze", Status.PENDING, True),
    (Release(SECOND, held=True), "release", Status.PENDING, True),
    (Park("acme", SECOND, None), "park", Status.PENDING, True),
    (Block("mail", SECOND, held=False), "block", Status.PENDING, True),
    (DeadLetter(), "dead_letter", Status.FAILED, False),
    (Discard("x"), "discard", Status.FAILED, False),
    (Suspend(), "suspend", Status.PENDING, True),
    (Replay(3), "replay", Status.PENDING, False),
]


@pytest.mark.parametrize(("change", "name", "status", "returned"), CHANGES)
def test_a_change_knows_its_name_its_state_and_whether_the_attempt_is_returned(change, name, status, returned) -> None:
    assert (change.name, change.status, change.returns_attempt) == (name, status, returned)


def test_every_change_is_in_the_table() -> None:
    assert {type(change) for change, *_ in CHANGES} == set(get_args(Change))


OUTCOMES: list[tuple[Outcome, str]] = [
    (Succeeded(), "succeeded"),
    (failed(Verdict.dead()), "failed"),
    (Snoozed(SECOND), "snoozed"),
    (Cancelled("x"), "cancelled"),
    (LeaseExpired(), "lease_expired"),
    (Released(started=True), "released"),
    (Suspended(), "suspended"),
]


@pytest.mark.parametrize(("outcome", "name"), OUTCOMES)
def test_an_outcome_knows_the_name_its_run_is_recorded_under(outcome: Outcome, name: str) -> None:
    assert outcome.name == name


def test_every_outcome_is_in_the_table() -> None:
    assert {type(outcome) for outcome, _ in OUTCOMES} == set(get_args(Outcome))


# The table in API.md, "Outcomes: raise or return".
@pytest.mark.parametrize(
    ("signal", "change", "returned"),
    [
        (TerminalError("x"), DeadLetter(), False),
        (RetryAfter("5s"), Retry(5 * SECOND), False),
        (SnoozeSignal("5s"), Postpone(5 * SECOND), True),
        (Cancel("x"), Discard("x"), False),
        (Outage("mail"), Block("mail", 2.5 * SECOND, held=False), True),
        (CircuitOpen("acme", "5s"), Park("acme", 5 * SECOND, None), True),
        (TimeoutError("x"), Retry(8 * SECOND), False),
    ],
)
def test_a_signal_becomes_what_the_table_says(signal: BaseException, change: Change, returned: bool) -> None:
    decided = decide(DELIVERY, outcome_of(signal), POLICY, 0.0)
    assert decided == change
    assert decided.returns_attempt is returned


def test_an_outcome_is_made_with_the_rules_and_the_report() -> None:
    exc = KeyError("id")
    outcome = outcome_of(exc, Rules(dead_on=(KeyError,)))
    assert outcome == Failed(report(exc), Verdict.dead())


def test_a_broken_rule_shows_in_the_trace() -> None:
    def broken(exc: BaseException) -> Verdict | None:
        raise ZeroDivisionError("oops")

    outcome = outcome_of(KeyError("id"), Rules(classify=broken))
    assert isinstance(outcome, Failed)
    assert "ZeroDivisionError: oops" in outcome.error.trace


def test_the_clock_for_a_retry_after_date_is_passed_on() -> None:
    exc = Exception("busy")
    vars(exc).update(status=503, headers={"Retry-After": "Thu, 01 Jan 2026 00:00:05 GMT"})
    outcome = outcome_of(exc, now=AT)
    assert isinstance(outcome, Failed)
    assert outcome.verdict == Verdict.retry(5 * SECOND)


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (failed(Verdict.dead()), ERROR),
        (LeaseExpired(), LEASE_EXPIRED),
        (Released(started=True), CUT_OFF),
        (Released(started=False), None),
        (Succeeded(), None),
        (Snoozed(SECOND), None),
        (Cancelled("x"), None),
    ],
)
def test_only_what_went_wrong_has_an_error(outcome: Outcome, error) -> None:
    assert error_of(outcome) == error


def test_a_reason_of_any_length_is_redacted_within_bounds() -> None:
    """A worker would not renew a lease while it looks for secrets in 50 MB."""
    seen: list[int] = []

    def hide(text: str) -> str:
        seen.append(len(text))
        return text

    cancelled = outcome_of(Cancel("x" * 1_000_000), hide=hide)
    assert isinstance(cancelled, Cancelled)
    assert max(seen) < 60_000
    assert len(cancelled.reason) <= MESSAGE_LIMIT
