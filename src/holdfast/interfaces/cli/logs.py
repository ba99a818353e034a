"""Logs on stderr: readable lines on a terminal, one JSON object per line elsewhere.

A background thread writes them, so a slow reader never blocks the process.
"""

import atexit
import contextlib
import logging
import os
import sys
from functools import partial

import structlog

from holdfast._log import background, write_stderr
from holdfast.core.redaction.mask import mask
from holdfast.core.redaction.redact import redact_logs
from holdfast.core.telemetry.log_line import one_line
from holdfast.core.values.text import printable, safe_str

_FORMAT = "HOLDFAST_LOG_FORMAT"
_LEVEL = "HOLDFAST_LOG_LEVEL"
_COLORS = {"debug": "2", "info": "32", "warning": "33", "error": "31", "critical": "1;31"}


def configure_logs(format: str, level: str) -> None:
    """Configures logging of this process and, through the environment, of the worker processes it starts.

    Tracebacks contain no local variables, because these may hold payloads or passwords. Secrets are masked in every line.
    """
    os.environ[_FORMAT], os.environ[_LEVEL] = format, level
    terminal = sys.stderr.isatty()
    readable = format == "console" or (format == "auto" and terminal)
    background.start()
    atexit.register(background.flush)
    stderr = _Stderr()
    render: structlog.types.Processor = (
        _Readable(colors=terminal and not os.environ.get("NO_COLOR"))
        if readable
        else structlog.processors.JSONRenderer(default=lambda value: mask(safe_str(value)))
    )
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            redact_logs,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=stderr),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )
    # Drivers use the standard library. The pool logs every connection attempt; our own events replace those.
    logging.basicConfig(stream=stderr, level=max(number, logging.WARNING), format="%(levelname)s %(name)s %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(_masked)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


class _Stderr:
    """File that writes from the logging thread, so that logging in a handler does not block it."""

    def write(self, text: str) -> None:
        background.submit(partial(write_stderr, text))

    def flush(self) -> None:
        """Does nothing: writes are not buffered."""


class _Readable:
    """Renders a readable line: time, level, event and fields, followed by the stack trace if there is one."""

    def __init__(self, *, colors: bool) -> None:
        self._colors = colors

    def __call__(self, _logger: object, _method: str, line: structlog.types.EventDict) -> str:
        level, at = str(line.pop("level", "")), str(line.pop("timestamp", ""))
        event = safe_str(line.pop("event", ""))
        traces = [str(line.pop(name)) for name in ("exception", "stack") if line.get(name)]
        text = one_line(event, line)
        if isinstance(trace := line.get("stack_trace"), str):
            traces.append(trace)
        # The time of day of an ISO time in UTC.
        shown = [f"{at[11:19]} {self._level(level)} {text}"]
        shown.extend(f"    {part}" for trace in traces for part in printable(trace).rstrip("\n").split("\n"))
        return "\n".join(shown)

    def _level(self, level: str) -> str:
        word = f"{level:<7}"
        return f"\x1b[{_COLORS.get(level, '0')}m{word}\x1b[0m" if self._colors else word


def _masked(record: logging.LogRecord) -> bool:
    """Masks secrets and control characters in log records of other libraries, such as a DSN in a message."""
    with contextlib.suppress(TypeError, ValueError):
        record.msg, record.args = printable(mask(record.getMessage())), ()
    return True
