"""Decides whether the end of a call counts as a failure of the called service."""

from holdfast.core.circuit import Result
from holdfast.core.failures.classify import VerdictKind, classify
from holdfast.core.failures.exception_info import carried_status
from holdfast.core.redaction.redact import hidden, redacted
from holdfast.core.values.text import safe_str, type_name


def classify_failure(error: BaseException | None) -> Result:
    """Decides what an exception means for the circuit: only an unavailable service counts as failed.

    Network errors, timeouts, 5xx and unknown errors count as failed. A refusal (4xx including 429, and terminal
    errors) comes from a service that works, so it counts as success. A cancellation, or a wait for another resource,
    does not count.
    """
    if error is None:
        return Result.SUCCEEDED
    if not isinstance(error, Exception):
        return Result.ABANDONED
    status = carried_status(error)
    if status is not None and 400 <= status < 500:
        return Result.SUCCEEDED
    match classify(error).kind:
        case VerdictKind.RETRY:
            return Result.FAILED
        case VerdictKind.DEAD:
            return Result.SUCCEEDED
        case VerdictKind.BLOCK | VerdictKind.PARK:
            return Result.ABANDONED


def describe_error(error: BaseException) -> str:
    """Formats an exception as one line, for operators."""
    return f"{type_name(type(error))}: {redacted(safe_str(error)[:1000], hidden())}".removesuffix(": ")
