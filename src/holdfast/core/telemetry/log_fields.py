"""Correlation ids as fields of a log line."""

from collections.abc import Mapping

from holdfast.core.redaction.mask import REDACTED, secret_name
from holdfast.core.telemetry.trace_context import TRACEPARENT, read_traceparent
from holdfast.core.values.text import printable

# The attributes of `logging.LogRecord`.
_RECORD = frozenset(
    {
        *("name", "msg", "args", "levelname", "levelno", "pathname", "filename", "module", "exc_info", "exc_text"),
        *("stack_info", "lineno", "funcName", "created", "msecs", "relativeCreated", "thread", "threadName"),
        *("processName", "process", "taskName", "message", "asctime", "extra", "stacklevel"),
    }
)
# Names with another meaning in structlog and its renderers, and our text fields.
_TAKEN = _RECORD | {
    *("self", "method_name", "event", "level", "log_level", "logger", "logger_name", "timestamp", "positional_args"),
    *("exception", "stack", "stack_trace", "error", "error_type"),
}


def field_name(name: str) -> str:
    """Return a name that does not collide with an attribute of a `logging` record.

    >>> field_name("message"), field_name("consumer")
    ('field_message', 'consumer')
    """
    return f"field_{name}" if name in _RECORD else name


def log_fields(headers: Mapping[str, object]) -> dict[str, object]:
    """Headers as fields of a log line, with control characters escaped.

    A reserved name gets a prefix; the value of a secret header is redacted.
    """
    known: dict[str, object] = {}
    for name, value in headers.items():
        shown = _flat(value) if isinstance(value, str) else value
        known[f"header_{name}" if name in _TAKEN else _flat(name)] = REDACTED if secret_name(name) else shown
    if TRACEPARENT in headers and "trace_id" not in headers and (trace := read_traceparent(headers[TRACEPARENT])):
        known["trace_id"] = trace.trace_id
    return known


def _flat(text: str) -> str:
    """`text` on one line without control characters, so that it cannot forge a log line."""
    return printable(text).replace("\n", "\\n")
