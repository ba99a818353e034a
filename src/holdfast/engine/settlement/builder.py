"""Turns an outcome into a settlement, with the log line and the alert that follow once it is durable."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.change import (
    Block,
    Change,
    DeadLetter,
    Deliver,
    DeliverResult,
    Discard,
    Park,
    Postpone,
    Release,
    Remove,
    Replay,
    Retry,
    Suspend,
)
from holdfast.core.decide import budget, decide, suspect_after
from holdfast.core.failures.report import ErrorReport
from holdfast.core.group import GROUP_MARK
from holdfast.core.outcome import LeaseExpired, Outcome, Released, error_of
from holdfast.core.retry import RetryPolicy
from holdfast.core.workflows.names import COMMANDS, is_start
from holdfast.engine.execution.invocation import Invocation
from holdfast.engine.handlers.handler import Handler
from holdfast.engine.settlement.settler import Ack
from holdfast.engine.telemetry.alert import Alerts, DeadLetterAlert
from holdfast.engine.telemetry.log_fields import delivery_fields
from holdfast.engine.telemetry.meter import Meter
from holdfast.engine.telemetry.repeats import Write
from holdfast.engine.workflows.settler import FinalFailure
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.deliveries.settle import Settlement

log = get_logger("holdfast.worker")


class SettlementBuilder:
    """Builds settlements. Log lines and alerts are written only after the settlement is durable."""

    def __init__(
        self,
        worker: str,
        alerts: Alerts,
        meter: Meter,
        handlers: Mapping[str, Handler],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._worker, self._alerts, self._meter, self._handlers, self._chance = worker, alerts, meter, handlers, chance
        self.released = 0
        """Number of deliveries that were released before they started."""

    def build(
        self,
        claimed: Invocation,
        outcome: Outcome,
        policy: RetryPolicy,
        elapsed: float | None = None,
        *,
        keep_run: bool = False,
        detail: str | None = None,
        share: float | None = None,
    ) -> tuple[Change, Ack]:
        """The change that `decide` returns for a delivery that ran for `elapsed` seconds, and its settlement.

        `share` is its part of the time of a batch, which metrics count, so that their sum is the time of the handler.
        """
        change = decide(claimed, outcome, policy, self._chance())
        lost = partial(self._lost, claimed, outcome)
        if share is None:
            share = elapsed
        if type(change) is Deliver and not keep_run:
            counted = partial(self._meter.settled, claimed, change.name, share)
            return change, Ack(Settlement(claimed.id, claimed.fence, change, outcome.name), counted, lost)
        error = error_of(outcome)
        expired = isinstance(outcome, LeaseExpired)
        settlement = Settlement(
            delivery_id=claimed.id,
            fence=claimed.fence,
            change=change,
            outcome=outcome.name,
            error=error,
            elapsed=None if elapsed is None else timedelta(seconds=elapsed),
            expired=expired,
            suspect=expired and suspect_after(claimed.expiries + 1),
            keep_run=keep_run and isinstance(change, Deliver),
            detail=detail,
        )
        written = partial(self._written, claimed, change, error, policy, elapsed, share)
        # Any worker may find that a step is dead, also one without the code of its workflow.
        is_dead_step = isinstance(change, DeadLetter) and is_start(claimed.type) and claimed.consumer != COMMANDS
        failure = FinalFailure(claimed.message_id, claimed.consumer) if is_dead_step else None
        return change, Ack(settlement, written, lost, step=failure)

    def take_over(self, claimed: Invocation, policy: RetryPolicy) -> tuple[Change, Ack]:
        """The change and the settlement of a delivery whose worker died."""
        known = self.log_fields(claimed)
        self._log(log.warning, "lease expired", None, known)
        return self.build(claimed, LeaseExpired(), policy)

    def _written(
        self,
        claimed: Invocation,
        change: Change,
        error: ErrorReport | None,
        policy: RetryPolicy,
        elapsed: float | None,
        share: float | None,
    ) -> None:
        self._meter.settled(claimed, change.name, share)
        known = self.log_fields(claimed) | {
            "max_attempts": budget(claimed, policy),
            "operation": claimed.consumer,
            "change": change.name,
        }
        if elapsed is not None:
            known["latency_ms"] = round(elapsed * 1000, 1)
        if error is not None:
            known |= {"error": error.message, "error_type": error.type}
            if error.trace:
                known["stack_trace"] = error.trace
            if error.http_status is not None:
                known["http_status"] = error.http_status
        match change:
            case Retry(delay):
                self._log(log.warning, "delivery retried", error, known | {"retryable": True} | _next_attempt(delay))
            case DeadLetter():
                self._alerts.dead(_alert(claimed, error, budget(claimed, policy), known))
            case Block(resource, delay, held):
                known |= {"resource": resource, "held": held} | _next_attempt(delay)
                self._log(log.warning, "delivery blocked", error, known)
            case Park(circuit, delay, until):
                self._log(
                    log.info, "delivery parked", error, known | {"circuit": circuit} | _next_attempt(delay, until)
                )
            case Postpone(delay):
                if error is None:
                    log.info("delivery snoozed", **known | _next_attempt(delay))
                else:
                    self._log(log.warning, "delivery snoozed", error, known | _next_attempt(delay))
            case Deliver():
                log.debug("delivery completed", **known)
            case Release(held=False):
                # Not started: a worker that stops releases hundreds, and logs their number in its last line.
                self.released += 1
                log.debug("delivery released", **known)
            case Release():
                log.info("delivery released", **known)
            case Discard():
                log.info("delivery discarded", **known)
            case Suspend():
                log.debug("step suspended", **known)
            case Replay():
                # Only an operator replays a delivery; `decide` never returns this change.
                pass

    def log_fields(self, claimed: Invocation) -> dict[str, object]:
        """The fields of a log line about a delivery of this worker."""
        return delivery_fields(claimed, self._handlers.get(claimed.consumer)) | {"worker": self._worker}

    def _log(self, write: Write, event: str, error: ErrorReport | None, known: dict[str, object]) -> None:
        mark = "" if error is None else error.fingerprint
        self._alerts.repeats.log(write, event, str(known["consumer"]), mark, known)

    def _lost(self, claimed: Invocation, outcome: Outcome) -> None:
        self._meter.lost(claimed)
        known = self.log_fields(claimed) | {"outcome": outcome.name, "fence": claimed.fence}
        self._log(log.warning, "lease lost", None, known)


def removal(claimed: Claimed, ack: Ack) -> Ack:
    """The settlement of a run whose handler keeps no delivered rows. A job of a group stays for the job after it."""
    change = ack.settlement.change
    if GROUP_MARK in claimed.headers:
        return ack
    if isinstance(change, DeliverResult):
        change = replace(change, remove=True)
    elif type(change) is Deliver:
        change = Remove()
    return ack._replace(settlement=ack.settlement._replace(change=change))


def release_unstarted(delivery_id: UUID, fence: int) -> Settlement:
    """Releases a claim that was never started and whose row is unknown: its attempt is not counted."""
    released = Released(started=False)
    return Settlement(
        delivery_id=delivery_id, fence=fence, change=Release(timedelta(0), held=False), outcome=released.name
    )


def _next_attempt(delay: timedelta | None, until: datetime | None = None) -> dict[str, object]:
    """The time of the next run, for people: by this machine's clock. The database's clock decides."""
    now = datetime.now(UTC)
    at = until if until is not None else now + (delay or timedelta(0))
    return {"next_attempt_in": round((at - now).total_seconds(), 3), "next_attempt_at": at.isoformat()}


def _alert(
    claimed: Invocation, error: ErrorReport | None, max_attempts: int, known: Mapping[str, object]
) -> DeadLetterAlert:
    return DeadLetterAlert(
        event_id=claimed.message_id,
        delivery_id=claimed.id,
        event_type=claimed.type,
        source=claimed.source,
        target=claimed.consumer,
        queue=claimed.queue,
        handler=claimed.consumer,
        last_error=error.message if error else "",
        error_type=error.type if error else "",
        fingerprint=error.fingerprint if error else "",
        attempts=claimed.attempts,
        max_attempts=max_attempts,
        stack_trace=error.trace if error else "",
        correlation=known,
    )
