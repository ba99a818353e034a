"""Fields of every log line about a run or an error."""

from holdfast.core.failures.report import report
from holdfast.core.redaction.redact import hidden
from holdfast.core.telemetry.log_fields import log_fields
from holdfast.core.telemetry.propagation import propagated
from holdfast.engine.execution.invocation import Invocation
from holdfast.engine.handlers.handler import Handler

__all__ = ["delivery_fields", "error_fields", "log_fields", "run_fields"]


def delivery_fields(run: Invocation, handler: Handler | None = None) -> dict[str, object]:
    """The fields of a run, with the correlation ids of its message; a header cannot replace a field.

    Without a handler the headers are not trusted: only the ids of requests, traces and correlations are included.
    """
    trusted = handler is not None and handler.trusts_headers
    known = log_fields(run.correlation if trusted else propagated(run.correlation)) | {
        "event_id": str(run.message_id),
        "delivery_id": str(run.id),
        "event_type": run.type,
        "source": run.source,
        "consumer": run.consumer,
        "queue": run.queue,
        "attempt": run.attempts,
    }
    if run.key is not None:
        known["idempotency_key"] = run.key
    return known


def run_fields(run: Invocation | dict[str, object], handler: Handler | None = None) -> dict[str, object]:
    """The fields of a run of one delivery, or those given for a batch."""
    return run if isinstance(run, dict) else delivery_fields(run, handler)


def error_fields(error: BaseException) -> dict[str, object]:
    """An error as fields of a log line: bounded text, and no local variables, which may hold payloads and secrets."""
    reported = report(error, hidden())
    return {"error": reported.message, "error_type": reported.type, "stack_trace": reported.trace}
