"""What every log line about a delivery carries."""

import logging
from collections.abc import Mapping

from holdfast.core.report import report
from holdfast.stores.claim import Claimed

# Names that mean something else to structlog and to logging; a header of such a name keeps its value under another.
_TAKEN = frozenset(
    {
        *vars(logging.makeLogRecord({})),
        *("message", "asctime", "extra", "stacklevel", "self", "method_name"),
        *("event", "level", "log_level", "logger", "logger_name", "timestamp", "positional_args"),
    }
)


def loggable(headers: Mapping[str, str]) -> dict[str, object]:
    """Headers as fields of a log line."""
    return {f"header_{name}" if name in _TAKEN else name: value for name, value in headers.items()}


def fields(claimed: Claimed) -> dict[str, object]:
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


def raised(error: BaseException) -> dict[str, object]:
    """An error as fields of a log line: bounded text, and no local variables, which may hold payloads and secrets."""
    told = report(error)
    return {"error": told.message, "error_type": told.type, "stack_trace": told.trace}
