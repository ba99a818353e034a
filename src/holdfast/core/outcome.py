"""Outcomes: what became of one run of a handler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, TypeAlias

from holdfast.core.errors import Cancel, ConfigurationError, Snooze
from holdfast.core.failures.classify import Rules, Verdict, classify
from holdfast.core.failures.report import CUT_OFF, LEASE_EXPIRED, ErrorReport, report
from holdfast.core.redaction.redact import redacted
from holdfast.core.text import safe_str


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The handler returned."""

    name: ClassVar[str] = "succeeded"


@dataclass(frozen=True, slots=True)
class Failed:
    """The handler failed; `held` says that what it blames seems to be well, so that a hold counts."""

    error: ErrorReport
    verdict: Verdict
    held: bool = False

    name: ClassVar[str] = "failed"


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The handler asked to be run again later."""

    delay: timedelta

    name: ClassVar[str] = "snoozed"


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The handler, or an operator, called it off."""

    reason: str

    name: ClassVar[str] = "cancelled"


@dataclass(frozen=True, slots=True)
class LeaseExpired:
    """Nobody reported: the worker died or lost touch."""

    name: ClassVar[str] = "lease_expired"


@dataclass(frozen=True, slots=True)
class Released:
    """The worker is shutting down; `started` says that the run was cut off in the middle."""

    started: bool

    name: ClassVar[str] = "released"


Outcome: TypeAlias = Succeeded | Failed | Snoozed | Cancelled | LeaseExpired | Released


def outcome_of(
    exc: BaseException, *rules: Rules, now: datetime | None = None, hide: Callable[[str], str] | None = None
) -> Outcome:
    """Return the outcome of a run that raised `exc`, or returned it as a signal; `hide` takes secrets out of texts."""
    if isinstance(exc, Snooze):
        return Snoozed(exc.delay)
    if isinstance(exc, Cancel):
        return Cancelled(redacted(safe_str(exc.reason), hide))
    # First the verdict: a classify that raises leaves a note that belongs into the trace.
    try:
        verdict = classify(exc, *rules, now=now)
    except ConfigurationError as wrong:
        # Guessing a verdict could repeat what must not be repeated. The trace holds `exc` as the cause.
        return Failed(report(wrong, hide), Verdict.dead())
    return Failed(report(exc, hide), verdict)


def error_of(outcome: Outcome) -> ErrorReport | None:
    """Return the error to record for `outcome`, None where nothing went wrong."""
    if isinstance(outcome, Failed):
        return outcome.error
    if isinstance(outcome, LeaseExpired):
        return LEASE_EXPIRED
    if isinstance(outcome, Released) and outcome.started:
        return CUT_OFF
    return None
