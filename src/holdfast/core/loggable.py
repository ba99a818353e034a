"""Correlation ids as fields of a log line."""

from collections.abc import Mapping

from holdfast.core.mask import REDACTED, secret_name
from holdfast.core.trace_context import TRACEPARENT, read_traceparent

# Names that mean something else to logging (the attributes of its records) and to structlog.
_TAKEN = frozenset(
    {
        *("name", "msg", "args", "levelname", "levelno", "pathname", "filename", "module", "exc_info", "exc_text"),
        *("stack_info", "lineno", "funcName", "created", "msecs", "relativeCreated", "thread", "threadName"),
        *("processName", "process", "taskName", "message", "asctime", "extra", "stacklevel", "self", "method_name"),
        *("event", "level", "log_level", "logger", "logger_name", "timestamp", "positional_args"),
    }
)


def loggable(headers: Mapping[str, object]) -> dict[str, object]:
    """Headers as fields of a log line; one whose name is taken keeps its value under another, a secret one shows none."""
    known: dict[str, object] = {
        f"header_{name}" if name in _TAKEN else name: REDACTED if secret_name(name) else value
        for name, value in headers.items()
    }
    if TRACEPARENT in headers and "trace_id" not in headers and (trace := read_traceparent(headers[TRACEPARENT])):
        known["trace_id"] = trace.trace_id
    return known
