"""Outcomes of one run of a handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, TypeAlias

from holdfast.core.errors import Cancel, ConfigurationError, EncryptionKeyMissing, Snooze
from holdfast.core.failures.classify import Rules, Verdict, classify
from holdfast.core.failures.report import CUT_OFF, LEASE_EXPIRED, ErrorReport, bounded_text, report
from holdfast.core.values.text import safe_str

KEY_MISSING_DELAY = timedelta(seconds=30)
"""How long a delivery waits for a worker that has its encryption key. It costs no attempt."""


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned."""

    name: ClassVar[str] = "succeeded"


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler failed. `held`: it reported a resource that seems to be available, so the hold counts."""

    error: ErrorReport
    verdict: Verdict
    held: bool = False

    name: ClassVar[str] = "failed"


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler requested another run later, or this worker cannot run the delivery because of `error`."""

    delay: timedelta
    error: ErrorReport | None = None

    name: ClassVar[str] = "snoozed"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler or an operator cancelled the delivery."""

    reason: str

    name: ClassVar[str] = "cancelled"


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """The lease expired without an outcome: the worker died or lost its connection."""

    name: ClassVar[str] = "lease_expired"


@dataclass(frozen=True, slots=True)
class Released:
    """The worker is shutting down. `started`: the run was interrupted."""

    started: bool

    name: ClassVar[str] = "released"


@dataclass(frozen=True, slots=True)
class Suspended:
    """A step of a workflow waits for a signal, a time, its items or a child run."""

    name: ClassVar[str] = "suspended"


Outcome: TypeAlias = Succeeded | Failed | Snoozed | Cancelled | LeaseExpired | Released | Suspended


def outcome_of(
    exc: BaseException, *rules: Rules, now: datetime | None = None, hide: Callable[[str], str] | None = None
) -> Outcome:
    """Return the outcome of a run that raised `exc` or returned it as a signal; `hide` removes secrets from texts."""
    if isinstance(exc, Snooze):
        return Snoozed(exc.delay)
    if isinstance(exc, EncryptionKeyMissing):
        return Snoozed(KEY_MISSING_DELAY, report(exc, hide))
    if isinstance(exc, Cancel):
        return Cancelled(bounded_text(safe_str(exc.reason), hide))
    # The verdict first: a `classify` that raises adds a note that belongs in the trace.
    try:
        verdict = classify(exc, *rules, now=now)
    except ConfigurationError as wrong:
        # Do not guess a verdict: it could repeat an effect that must not be repeated. The trace has `exc` as the cause.
        return Failed(report(wrong, hide), Verdict.dead())
    return Failed(report(exc, hide), verdict)


def error_of(outcome: Outcome) -> ErrorReport | None:
    """Return the error to record for `outcome`, None without an error."""
    if isinstance(outcome, Failed | Snoozed):
        return outcome.error
    if isinstance(outcome, LeaseExpired):
        return LEASE_EXPIRED
    if isinstance(outcome, Released) and outcome.started:
        return CUT_OFF
    return None
