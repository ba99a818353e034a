"""Logs on stderr: readable on a terminal, one JSON object a line elsewhere."""

import logging
import os
import sys

import structlog

_FORMAT = "HOLDFAST_LOG_FORMAT"
_LEVEL = "HOLDFAST_LOG_LEVEL"


def configure_logs(format: str, level: str) -> None:
    """Sets how this process logs, and through the environment how the workers it starts do.

    Tracebacks never show local variables: a payload or a password may be among them.
    """
    os.environ[_FORMAT], os.environ[_LEVEL] = format, level
    terminal = sys.stderr.isatty()
    readable = format == "console" or (format == "auto" and terminal)
    processors: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if readable:
        processors.append(
            structlog.dev.ConsoleRenderer(
                colors=terminal and not os.environ.get("NO_COLOR"),
                exception_formatter=structlog.dev.plain_traceback,
            )
        )
    else:
        processors += [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(default=str)]
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
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)
