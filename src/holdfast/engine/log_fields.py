"""What every log line about a delivery carries."""

from holdfast.core.failures.report import report
from holdfast.core.redaction.redact import hidden
from holdfast.core.telemetry.log_fields import loggable
from holdfast.stores.deliveries.claim import Claimed

__all__ = ["delivery_fields", "error_fields", "loggable"]


def delivery_fields(claimed: Claimed) -> dict[str, object]:
    """The correlation ids of a delivery's message and what it is itself; no header can hide what is ours."""
    known = loggable(claimed.correlation) | {
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


def error_fields(error: BaseException) -> dict[str, object]:
    """An error as fields of a log line: bounded text, and no local variables, which may hold payloads and secrets."""
    reported = report(error, hidden())
    return {"error": reported.message, "error_type": reported.type, "stack_trace": reported.trace}
