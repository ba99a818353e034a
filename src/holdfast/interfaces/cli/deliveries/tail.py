"""`holdfast tail`: follows deliveries through their states, one line per change."""

import contextlib
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import DURATION, SINCE, STATUS
from holdfast.interfaces.cli.output import console, reader_is_gone, status_style
from holdfast.interfaces.cli.settings import command, settings
from holdfast.interfaces.presentation.deliveries import attempts, state
from holdfast.interfaces.presentation.filters import delivery_filter
from holdfast.interfaces.presentation.formatting import one_line, printable
from holdfast.ops.queries.activity import changed_at
from holdfast.stores.queries.query import DeliverySummary

_LEAST = 0.1


@command(name="tail")
@STATUS
@click.option("--consumer", "consumer", multiple=True, metavar="NAME", help="Only this consumer. Repeatable.")
@click.option("--queue", metavar="NAME", help="Only this queue.")
@click.option("--type", "type", metavar="TYPE", help="Only this type, or a prefix (order.*).")
@click.option("--since", type=SINCE, metavar="TIME", help="Begin at this time: 10m, 2026-11-15T09:00Z.  [default: now]")
@click.option("--every", type=DURATION, default="1s", show_default=True, help="Time between two queries.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@click.option("--once", is_flag=True, help="Print what --since finds, and exit.")
def cli(
    status: tuple[str, ...], since: datetime | None, every: timedelta, as_json: bool, once: bool, **chosen: Any
) -> ExitCode:
    """Follow deliveries: one line for each that is created, claimed, retried, delivered or failed, until interrupted.

    A state that lasts shorter than --every may not be shown. A delivery that was created before the start is shown from
    its next failed attempt on.

    \b
      holdfast tail
      holdfast tail --consumer billing --status failed
      holdfast tail --since 10m --json | jq .last_error
    """
    wanted, ops, cursor = delivery_filter(**chosen), settings().operations(), None
    ops.check_filter(wanted)
    as_json = as_json or not settings().tabular
    # Ctrl-C and the end of the reader, as in `| head`, are the usual ends.
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            found = ops.activity(wanted, cursor=cursor, since=since)
            cursor = found.cursor
            _print([one for one in found.changed if not status or state(one) in status], found.now, as_json)
            if found.more:
                continue
            if once or reader_is_gone(sys.stdout):
                break
            time.sleep(max(_LEAST, every.total_seconds()))
    return ExitCode.DONE


def _print(changed: Sequence[DeliverySummary], now: datetime, as_json: bool) -> None:
    if as_json:
        from holdfast.interfaces.presentation.views import dumps

        for one in changed:
            click.echo(dumps(one))
    else:
        _print_lines(changed, now)
    sys.stdout.flush()


def _print_lines(changed: Sequence[DeliverySummary], now: datetime) -> None:
    """Time, state, consumer, type, runs and id; the error, or what does not fit the terminal, is on a second line."""
    from rich.text import Text

    out = console()
    for one in changed:
        shown, row = state(one), one.delivery
        line = Text(f"{changed_at(one, now).astimezone(UTC):%H:%M:%S} ")
        line.append(f"{shown:<9}", style=status_style(shown))
        line.append(printable(f"  {row.consumer}  {one.type}  {attempts(one)}"))
        id = Text(f"  {row.id}", style="dim")
        fits = line.cell_len + id.cell_len <= out.width
        out.print(line + id if fits else line, soft_wrap=True)
        error = one_line(f"{row.error_type}: {row.last_error}") if row.attempts and row.last_error else ""
        if not fits or error:
            rest = Text(" " * 9 + ("" if fits else f"{row.id}  ") + error)
            rest.truncate(out.width, overflow="ellipsis")
            out.print(rest, soft_wrap=True)
