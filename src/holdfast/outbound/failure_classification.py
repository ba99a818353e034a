"""What the end of a call says about the dependency that was called."""

from holdfast.core.carried import carried_status
from holdfast.core.circuit import Result
from holdfast.core.classify import VerdictKind, classify
from holdfast.core.redact import hidden, redacted
from holdfast.core.text import safe_str, type_name


def classify_failure(error: BaseException | None) -> Result:
    """What an exception says about the dependency: only being out of order counts against it.

    Network errors, time-outs, 5xx and what is not known count as failed. An answer that refuses (4xx, also 429, and
    whatever is terminal) came from a service that works. Being cancelled, or waiting for another resource, says nothing.
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
    """An exception in one line, for operators."""
    return f"{type_name(type(error))}: {redacted(safe_str(error)[:1000], hidden())}".removesuffix(": ")
