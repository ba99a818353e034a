"""The decision about a delivery after a run. No other module compares attempts with the limit.

Reported failures and expired leases use the same rules, for every store and every worker.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol, assert_never

from holdfast.core.change import Block, Change, DeadLetter, Deliver, Discard, Park, Postpone, Release, Retry, Suspend
from holdfast.core.failures.verdict import VerdictKind
from holdfast.core.outcome import Cancelled, Failed, LeaseExpired, Outcome, Released, Snoozed, Succeeded, Suspended
from holdfast.core.retry import RetryPolicy

MAX_HOLDS = 20
"""The number of holds (interrupted runs, or reports about a resource that is available) before they count as failures."""

SUSPECT_EXPIRIES = 2
PARK_DELAY = timedelta(minutes=5)

_NOW = timedelta(0)
_DELIVER = Deliver()
_SUSPEND = Suspend()
_HOLD = RetryPolicy.exponential(base=5, cap="5m", jitter="equal")


class AttemptCounts(Protocol):
    """The counters of a delivery that a decision needs."""

    @property
    def attempts(self) -> int: ...
    @property
    def max_attempts(self) -> int | None: ...
    @property
    def holds(self) -> int: ...
    @property
    def expiries(self) -> int: ...


def decide(delivery: AttemptCounts, outcome: Outcome, policy: RetryPolicy, random: float) -> Change:
    """Return the change after a run of `delivery`; a pure function.

    `random` in [0, 1) selects the jitter. `max_attempts` of the delivery overrides the attempts of the policy.
    """
    match outcome:
        case Succeeded():
            return _DELIVER
        case Failed():
            return _failed(delivery, outcome, policy, random)
        case LeaseExpired():
            return _spend(delivery, policy, random)
        case Snoozed():
            return Postpone(outcome.delay)
        case Suspended():
            return _SUSPEND
        case Cancelled():
            return Discard(outcome.reason)
        case Released():
            if outcome.started and delivery.holds >= MAX_HOLDS:
                return _spend(delivery, policy, random)
            return Release(_NOW, held=outcome.started)
        case _:
            assert_never(outcome)


def budget(delivery: AttemptCounts, policy: RetryPolicy) -> int:
    """Return the maximum number of runs of `delivery`."""
    return policy.attempts if delivery.max_attempts is None else delivery.max_attempts


def suspect_after(expiries: int) -> bool:
    """Whether a delivery with this many expired leases must run alone, because it may crash its workers."""
    return expiries >= SUSPECT_EXPIRIES


def _failed(delivery: AttemptCounts, outcome: Failed, policy: RetryPolicy, random: float) -> Change:
    verdict = outcome.verdict
    match verdict.kind:
        case VerdictKind.DEAD:
            return DeadLetter()
        case VerdictKind.RETRY:
            return _spend(delivery, policy, random, verdict.after)
        case VerdictKind.PARK:
            if verdict.until is not None:
                return Park(verdict.resource or "", None, verdict.until)
            return Park(verdict.resource or "", PARK_DELAY if verdict.after is None else verdict.after, None)
        case VerdictKind.BLOCK:
            # While the resource is unavailable, holds are not counted. A poison message that only looks like an outage
            # is counted, so that it becomes a dead letter.
            if outcome.held and delivery.holds >= MAX_HOLDS:
                return _spend(delivery, policy, random)
            delay = _HOLD.delay(delivery.holds + 1, random)
            return Block(verdict.resource or "", max(delay, verdict.after or _NOW), outcome.held)
        case _:
            assert_never(verdict.kind)


def _spend(
    delivery: AttemptCounts, policy: RetryPolicy, random: float, after: timedelta | None = None
) -> Retry | DeadLetter:
    if delivery.attempts >= budget(delivery, policy):
        return DeadLetter()
    return Retry(policy.delay(delivery.attempts, random) if after is None else policy.clamp(after))
