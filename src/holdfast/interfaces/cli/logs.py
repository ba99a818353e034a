"""Logs on stderr, also those of the standard library: readable lines on a terminal, one JSON object per line elsewhere.

A background thread writes them, so a slow reader never blocks the process.
"""

import atexit
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog

from holdfast._log import background, write_stderr
from holdfast.core.redaction.mask import mask
from holdfast.core.redaction.redact import redact_logs
from holdfast.core.telemetry.log_line import one_line
from holdfast.core.values.text import printable, safe_str

_FORMAT = "HOLDFAST_LOG_FORMAT"
_LEVEL = "HOLDFAST_LOG_LEVEL"
_COLORS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}


def configure_logs(format: str, level: str, complete: Callable[[str], str] = str) -> None:
    """Configures logging of this process and, through the environment, of the worker processes it starts.

    `complete` makes each command in a line one that can be copied.

    Tracebacks contain no local variables, because these may hold payloads or passwords. Secrets are masked in every line.
    """
    os.environ[_FORMAT], os.environ[_LEVEL] = format, level
    terminal = sys.stderr.isatty()
    readable = format == "console" or (format == "auto" and terminal)
    background.start()
    atexit.register(background.flush)
    stderr = _Stderr()
    render: structlog.types.Processor = (
        _Readable(colors=terminal and not os.environ.get("NO_COLOR"), complete=complete)
        if readable
        else structlog.processors.JSONRenderer(default=lambda value: mask(safe_str(value)))
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    last: list[structlog.types.Processor] = [structlog.processors.format_exc_info, redact_logs, render]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=stderr),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    _configure_standard_library(stderr, number, last)


def _configure_standard_library(stderr: "_Stderr", level: int, render: Sequence[structlog.types.Processor]) -> None:
    """Writes records of `logging` in the same format, unless the app has configured the root logger itself."""
    root = logging.getLogger()
    if not root.handlers:
        handler = logging.StreamHandler(stderr)
        handler.setFormatter(_RecordFormatter(render))
        handler.addFilter(_is_new)
        root.addHandler(handler)
        # Drivers and libraries report every connection or request at info.
        root.setLevel(max(level, logging.WARNING))
    for one in root.handlers:
        one.addFilter(_masked)
    # The pool logs every connection attempt; our own events replace those.
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


class _Stderr:
    """File that writes from the logging thread, so that logging in a handler does not block it."""

    def write(self, text: str) -> None:
        background.submit(partial(write_stderr, text))

    def flush(self) -> None:
        """Does nothing: writes are not buffered."""


class _Readable:
    """Renders a readable line: time, level, event and fields, followed by the stack trace if there is one."""

    def __init__(self, *, colors: bool, complete: Callable[[str], str]) -> None:
        self._colors, self._complete = colors, complete

    def __call__(self, _logger: object, _method: str, line: structlog.types.EventDict) -> str:
        level, at = str(line.pop("level", "")), str(line.pop("timestamp", ""))
        event = safe_str(line.pop("event", ""))
        traces = [str(line.pop(name)) for name in ("exception", "stack") if line.get(name)]
        text = one_line(event, line, self._complete)
        if isinstance(trace := line.get("stack_trace"), str):
            traces.append(trace)
        # The time of day of an ISO time in UTC.
        shown = [f"{at[11:19]} {self._level(level)} {text}"]
        shown.extend(f"    {part}" for trace in traces for part in printable(trace).rstrip("\n").split("\n"))
        return "\n".join(shown)

    def _level(self, level: str) -> str:
        word = f"{level:<7}"
        return f"\x1b[{_COLORS.get(level, '0')}m{word}\x1b[0m" if self._colors else word


class _RecordFormatter(logging.Formatter):
    """Formats records of the standard library like the lines of Holdfast, with the ids of the current request."""

    def __init__(self, render: Sequence[structlog.types.Processor]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        line: Any = {
            "logger": record.name,
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "timestamp": at,
        }
        line = structlog.contextvars.merge_contextvars(None, "", line)
        line |= {"exc_info": record.exc_info} if record.exc_info else {}
        line |= {"stack": record.stack_info} if record.stack_info else {}
        for processor in self._render:
            line = processor(None, "", line)
        return str(line)


def _is_new(record: logging.LogRecord) -> bool:
    """False if a logger below the root, such as Django's, already writes the record to the same terminal or log."""
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None and logger is not logging.root:
        for handler in logger.handlers:
            is_shown = isinstance(handler, logging.StreamHandler) and handler.stream in (sys.stderr, sys.stdout)
            if is_shown and record.levelno >= handler.level and handler.filter(record):
                return False
        logger = logger.parent
    return True


def _masked(record: logging.LogRecord) -> bool:
    """Masks secrets and control characters in log records of other libraries, such as a DSN in a message."""
    with contextlib.suppress(TypeError, ValueError):
        record.msg, record.args = printable(mask(record.getMessage())), ()
    return True
