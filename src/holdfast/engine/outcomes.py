"""From an outcome to a settlement, and to the log line and alert that follow once it is durable."""

import random
from collections.abc import Callable
from datetime import timedelta
from functools import partial

import structlog

from holdfast.core.change import Block, Change, DeadLetter, Deliver, Retry
from holdfast.core.decide import budget, decide, suspect_after
from holdfast.core.outcome import LeaseExpired, Outcome, error_of
from holdfast.core.report import ErrorReport
from holdfast.core.retry import RetryPolicy
from holdfast.engine.alert import Alerts, DeadLetterAlert
from holdfast.engine.settler import Ack
from holdfast.stores.claim import Claimed
from holdfast.stores.settle import Settlement

log = structlog.get_logger("holdfast.worker")


def fields(claimed: Claimed) -> dict[str, object]:
    """What every log line about a delivery carries; its correlation ids come first, so that none can hide ours."""
    known: dict[str, object] = {
        **claimed.correlation,
        "event_id": str(claimed.message_id),
        "delivery_id": str(claimed.id),
        "event_type": claimed.type,
        "source": claimed.source,
        "consumer": claimed.consumer,
        "queue": claimed.queue,
        "attempt": claimed.attempts,
    }
    if claimed.key is not None:
        known["idempotency_key"] = claimed.key
    return known


class Outcomes:
    """Decides, and says so: each line is written only after what it tells of is durable."""

    def __init__(self, worker: str, alerts: Alerts, chance: Callable[[], float] = random.random) -> None:
        self._worker, self._alerts, self._chance = worker, alerts, chance

    def settle(
        self,
        claimed: Claimed,
        outcome: Outcome,
        policy: RetryPolicy,
        elapsed: timedelta | None = None,
        *,
        keep_run: bool = False,
    ) -> tuple[Change, Ack]:
        """What becomes of a delivery, and the acknowledgement that writes it."""
        change = decide(claimed, outcome, policy, self._chance())
        lost = partial(self._lost, claimed, outcome)
        if type(change) is Deliver and not keep_run:
            settlement = Settlement(
                delivery_id=claimed.id, fence=claimed.fence, change=change, outcome=outcome.name, elapsed=elapsed
            )
            return change, Ack(settlement, None, lost)
        error = error_of(outcome)
        expired = isinstance(outcome, LeaseExpired)
        settlement = Settlement(
            delivery_id=claimed.id,
            fence=claimed.fence,
            change=change,
            outcome=outcome.name,
            error=error,
            elapsed=elapsed,
            expired=expired,
            suspect=expired and suspect_after(claimed._replace(expiries=claimed.expiries + 1)),
            keep_run=keep_run,
        )
        return change, Ack(settlement, partial(self._written, claimed, change, error, policy, elapsed), lost)

    def _written(
        self,
        claimed: Claimed,
        change: Change,
        error: ErrorReport | None,
        policy: RetryPolicy,
        elapsed: timedelta | None,
    ) -> None:
        known = fields(claimed) | {"max_attempts": budget(claimed, policy), "operation": change.name}
        if elapsed is not None:
            known["latency_ms"] = round(elapsed.total_seconds() * 1000, 1)
        if error is not None:
            known |= {"error": error.message, "error_type": error.type}
        match change:
            case Retry(delay):
                log.warning("will retry", retryable=True, next_attempt_in=delay.total_seconds(), **known)
            case DeadLetter():
                self._alerts.dead(_alert(claimed, error))
            case Block(resource, delay, held):
                log.warning("held back", resource=resource, next_attempt_in=delay.total_seconds(), held=held, **known)
            case Deliver():
                log.debug("delivered", **known)
            case _:
                log.info(change.name, **known)

    def _lost(self, claimed: Claimed, outcome: Outcome) -> None:
        log.warning(
            "lease lost: the outcome of this run was refused, its present owner decides",
            outcome=outcome.name,
            fence=claimed.fence,
            worker=self._worker,
            **fields(claimed),
        )


def _alert(claimed: Claimed, error: ErrorReport | None) -> DeadLetterAlert:
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
    )
