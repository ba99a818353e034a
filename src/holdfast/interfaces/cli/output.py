"""Output: data to stdout as tables or JSON, notes and progress to stderr."""

import contextlib
import errno
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click

from holdfast.interfaces.cli.next_command import with_store
from holdfast.interfaces.cli.settings import Settings
from holdfast.interfaces.cli.table import Column, lines_of
from holdfast.interfaces.presentation.formatting import printable

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

# Wide enough that a table in a pipe or a file is never truncated.
_PIPE_WIDTH = 10_000

STYLES = {
    "ok": "green",
    "delivered": "green",
    "alive": "green",
    "pending": "cyan",
    "in_flight": "blue",
    "warn": "yellow",
    "paused": "yellow",
    "blocked": "yellow",
    "suspect": "yellow",
    "lapsed": "yellow",
    "completed": "green",
    "started": "blue",
    "failed": "red",
    "fail": "red",
    "gone": "red",
    "discarded": "dim",
}


def show_list(settings: Settings, items: Sequence[T], columns: Sequence[Column[T]], empty: str) -> None:
    """Prints a list in the requested format. For an empty table it prints `empty` to stderr."""
    if not settings.tabular:
        show_json(settings, items)
        return
    if not items:
        note(empty)
        return
    print_table(items, columns)


def show_value(settings: Settings, value: T, print_text: Callable[[T], object]) -> None:
    """Prints a value in the requested format: as JSON, or with `print_text`."""
    if settings.tabular:
        print_text(value)
    else:
        show_json(settings, value)


def show_json(settings: Settings, value: object) -> None:
    """Prints JSON: a list is one array or, with jsonl, one line per item."""
    from holdfast.interfaces.presentation.views import dumps

    if settings.format == "jsonl":
        for item in value if isinstance(value, list | tuple) and not hasattr(value, "_fields") else [value]:
            click.echo(dumps(item))
    else:
        click.echo(dumps(value, indent=True))


def print_table(items: Sequence[T], columns: Sequence[Column[T]]) -> None:
    """Prints a table that fits the terminal."""
    out = console()
    for line in lines_of(items, columns, out.width):
        out.print(line, soft_wrap=True)


def status_style(status: str) -> str:
    return STYLES.get(status, "")


def console(*, err: bool = False) -> "Console":
    """Console on stdout or stderr. Colors only on a terminal, and never with NO_COLOR."""
    from rich.console import Console

    class PipeConsole(Console):
        """Leaves a closed pipe to `until_reader_is_gone`; rich would end the process with exit code 1."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError(errno.EPIPE, "the reader closed the pipe")

    stream = sys.stderr if err else sys.stdout
    width: dict[str, Any] = {} if stream.isatty() else {"width": _PIPE_WIDTH}
    return PipeConsole(file=stream, highlight=False, emoji=False, markup=False, **width)


def until_reader_is_gone(call: Callable[[], T]) -> T | None:
    """Calls a function that prints; None if the reader of stdout or stderr went away, as in `| head`, which is no error.

    The interpreter flushes both at its end, so a closed one is replaced.
    """
    try:
        return call()
    except BrokenPipeError:
        if not (closed := [stream for stream in (sys.stdout, sys.stderr) if reader_is_gone(stream)]):
            raise
        for stream in closed:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return None


def reader_is_gone(stream: TextIO) -> bool:
    """Whether the other end of the pipe of a stream is closed."""
    with contextlib.suppress(OSError, ValueError):
        poll = select.poll()
        poll.register(stream.fileno(), select.POLLERR)
        return bool(poll.poll(0))
    return False


def note(text: str) -> None:
    """Prints a note to stderr. Commands in it get the options that chose the store."""
    click.echo(printable(with_store(text)), err=True)


class ProgressLine:
    """Shows progress on stderr: one updated line on a terminal, a new line every 1,000 items elsewhere."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._live = sys.stderr.isatty()
        self._printed = 0
        self._open = False

    def __call__(self, done: int, total: int | None = None) -> None:
        text = f"{self._verb} {done:,}" + (f" of {total:,}" if total is not None else "")
        if self._live:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
            self._open = True
        elif done - self._printed >= 1000:
            self._printed = done
            note(text)

    def __enter__(self) -> "ProgressLine":
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            click.echo("\r\x1b[K", err=True, nl=False)
