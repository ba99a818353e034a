"""Correlation ids as fields of a log line."""

from collections.abc import Mapping

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
    """Headers as fields of a log line; one whose name is taken keeps its value under another."""
    return {f"header_{name}" if name in _TAKEN else name: value for name, value in headers.items()}
