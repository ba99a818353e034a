"""Holdfast's log lines: through structlog as the application configured it, otherwise through `logging`. Never stdout.

While a worker runs, a thread writes the lines. A terminal, pipe or handler that does not accept them cannot stop the event
loop: the queue is bounded, and lines that do not fit are dropped and counted.
"""

from __future__ import annotations

import contextvars
import logging
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import structlog

from holdfast.core.redaction.redact import redact_logs
from holdfast.core.telemetry.log_fields import field_name
from holdfast.core.telemetry.log_line import one_line
from holdfast.core.values.text import printable, safe_str

MOST_WAITING = 10_000
"""Maximum number of queued lines; further ones are dropped and counted."""

FLUSH_SECONDS = 1.0
_LEVELS: Mapping[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class Background:
    """Runs calls in order in a thread while `running` is entered; otherwise runs them at once."""

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most = most
        self._calls: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._pid = 0
        self._users = 0
        self._dropped = 0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside the block, `submit` never blocks. At its end the queued lines are written, for at most a second."""
        self.start()
        try:
            yield
        finally:
            self.flush()
            with self._lock:
                self._users -= 1

    def start(self) -> None:
        """Starts the thread, a daemon thread: the process can exit while it runs."""
        with self._lock:
            self._users += 1
            if self._thread is None or self._pid != os.getpid():
                self._pid, self._calls = os.getpid(), queue.SimpleQueue()
                self._thread = threading.Thread(target=self._run, args=(self._calls,), name="holdfast-log", daemon=True)
                self._thread.start()

    def submit(self, call: Callable[[], object]) -> None:
        """Queues the call, or runs it now if no thread runs. If the queue is full, the call is dropped and counted."""
        thread = self._thread
        if not self._users or self._pid != os.getpid() or thread is threading.current_thread():
            call()
        elif self._calls.qsize() >= self._most:
            with self._lock:
                self._dropped += 1
        else:
            self._calls.put(call)

    def flush(self, seconds: float = FLUSH_SECONDS) -> bool:
        """Waits until all submitted calls are done; false on timeout."""
        if not self._users or self._pid != os.getpid() or self._thread is threading.current_thread():
            return True
        done = threading.Event()
        self._calls.put(done.set)
        return done.wait(seconds)

    def _run(self, calls: queue.SimpleQueue[Callable[[], object]]) -> None:
        while True:
            _call(calls.get())
            if self._dropped:
                with self._lock:
                    dropped, self._dropped = self._dropped, 0
                _call(partial(get_logger("holdfast").warning, "log lines dropped", lines=dropped))


def _call(call: Callable[[], object]) -> None:
    try:
        call()
    except Exception as error:  # noqa: BLE001 - a handler or processor of the application
        write_stderr(f"a log line was lost: {type(error).__name__}: {printable(safe_str(error)[:500])}\n")


background = Background()


class Logger:
    """Logs events with fields, through structlog if the application has configured it, otherwise through `logging`."""

    __slots__ = ("_logging", "_name")

    def __init__(self, name: str) -> None:
        self._name, self._logging = name, logging.getLogger(name)

    def debug(self, event: str, **fields: object) -> None:
        self._log("debug", event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._log("info", event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._log("warning", event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._log("error", event, fields)

    def _log(self, level: str, event: str, fields: dict[str, Any]) -> None:
        if structlog.is_configured():
            method = getattr(structlog.get_logger(self._name), level)
            # The processors may read context variables.
            background.submit(partial(contextvars.copy_context().run, method, event, **fields))
        elif self._logging.isEnabledFor(number := _LEVELS[level]):
            background.submit(partial(_handle, self._logging, self._record(number, event, fields)))

    def _record(self, number: int, event: str, fields: dict[str, Any]) -> logging.LogRecord:
        """The line as a log record: the message is for people, and every field is an attribute."""
        known = redact_logs(None, "", {**structlog.contextvars.get_contextvars(), **fields})
        extra = {field_name(name): value for name, value in known.items()} | {"event": event}
        record = self._logging.makeRecord(
            self._name, number, "holdfast", 0, one_line(event, known), (), None, extra=extra
        )
        if trace := known.get("stack_trace"):
            # Formatters append it to the message.
            record.exc_text = printable(str(trace)).rstrip("\n")
        return record


def get_logger(name: str) -> Logger:
    """The logger of this name, which is also its name in `logging`."""
    return Logger(name)


def write_stderr(text: str) -> None:
    """Writes to stderr without its buffer: a thread that blocks here holds no lock that the exit of the process needs."""
    try:
        target = sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):
        # stderr was closed, or replaced by an object without a file descriptor.
        if sys.stderr is not None:
            sys.stderr.write(text)
        return
    data = text.encode("utf-8", "backslashreplace")
    while data:
        data = data[os.write(target, data) :]


def _handle(logger: logging.Logger, record: logging.LogRecord) -> None:
    if logger.hasHandlers():
        logger.handle(record)
    elif logging.lastResort is not None and record.levelno >= logging.lastResort.level:
        write_stderr(logging.lastResort.format(record) + "\n")
