"""Logs on stderr: readable on a terminal, one JSON object a line elsewhere."""

import contextlib
import logging
import os
import sys

import structlog

from holdfast.core.mask import mask
from holdfast.core.redact import redact_logs
from holdfast.core.text import safe_str

_FORMAT = "HOLDFAST_LOG_FORMAT"
_LEVEL = "HOLDFAST_LOG_LEVEL"


def configure_logs(format: str, level: str) -> None:
    """Sets how this process logs, and through the environment how the workers it starts do.

    Tracebacks never show local variables: a payload or a password may be among them. No line shows what is secret.
    """
    os.environ[_FORMAT], os.environ[_LEVEL] = format, level
    terminal = sys.stderr.isatty()
    readable = format == "console" or (format == "auto" and terminal)
    processors: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        redact_logs,
    ]
    if readable:
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=terminal and not os.environ.get("NO_COLOR"),
                exception_formatter=structlog.dev.plain_traceback,
            )
        )
    else:
        processors.append(structlog.processors.JSONRenderer(default=lambda value: mask(safe_str(value))))
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    # Drivers log through the standard library; a pool tells of every attempt to connect, and we say it better.
    logging.basicConfig(
        stream=sys.stderr, level=max(number, logging.WARNING), format="%(levelname)s %(name)s %(message)s"
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(_masked)
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)


def _masked(record: logging.LogRecord) -> bool:
    """What other libraries log may hold the address they were given."""
    with contextlib.suppress(TypeError, ValueError):
        record.msg, record.args = mask(record.getMessage()), ()
    return True
