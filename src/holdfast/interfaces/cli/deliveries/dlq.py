"""`holdfast dlq`: lists, shows, groups, discards and exports dead letters."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

import click

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.cli.deliveries.columns import dead_letter_columns
from holdfast.interfaces.cli.deliveries.deliveries import add_bulk_action
from holdfast.interfaces.cli.deliveries.delivery_report import print_report
from holdfast.interfaces.cli.filters import ID, filter_options, page_options
from holdfast.interfaces.cli.output import ProgressLine, note, show_list, show_value
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, time_column
from holdfast.interfaces.presentation.deliveries import state
from holdfast.interfaces.presentation.filters import DEAD_LETTER_STATES, delivery_filter
from holdfast.interfaces.presentation.formatting import many, one_line, short_frame
from holdfast.ops.queries.deliveries import Exported
from holdfast.ops.service import SyncOperations
from holdfast.stores.admin.plan import Action
from holdfast.stores.file import private
from holdfast.stores.queries.query import FailureGroup, Filter

_PAGE = 500


@group("dlq")
def cli() -> None:
    """Inspect, discard and export dead letters. `holdfast replay` runs them again."""


@command(cli, name="list")
@click.option(
    "--state",
    type=click.Choice(DEAD_LETTER_STATES),
    default=DEAD_LETTER_STATES[0],
    show_default=True,
    help="Waiting for a decision, replayed, or discarded.",
)
@filter_options
@page_options
def list_(limit: int, before: UUID | None, state: str, **chosen: Any) -> None:
    """List dead letters, newest first."""
    ops = settings().operations()
    wanted = delivery_filter(**chosen, state=state)
    found = ops.deliveries(wanted, limit=limit, before=before)
    if not found:
        ops.check_filter(wanted)
    show_list(settings(), found, dead_letter_columns(ops.now()), "no dead letters")
    if settings().tabular and len(found) == limit:
        note(f"next page: add --before {found[-1].delivery.id}")


@command(cli, name="show")
@click.argument("id", type=ID)
def show(id: UUID) -> None:
    """Show a dead letter: error, runs, similar failures, audit entries and next steps."""
    detail = settings().operations().delivery(id)
    if not detail.listed.delivery.dead:
        note(f"this delivery is not a dead letter; its state is {state(detail.listed).replace('_', ' ')}")
    show_value(settings(), detail, print_report)


@command(cli, name="groups")
@click.option("--consumer", multiple=True, metavar="NAME", help="Only this consumer. Repeatable.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of groups.")
def groups(consumer: tuple[str, ...], limit: int) -> None:
    """Group dead letters by failure, largest group first."""
    ops = settings().operations()
    found = ops.failure_groups(limit=limit, consumers=consumer)
    if not found:
        ops.check_filter(Filter(consumers=consumer))
    now = ops.now()
    columns: list[Column[FailureGroup]] = [
        Column("GROUP", lambda one: one.fingerprint or ""),
        Column("COUNT", lambda one: f"{one.count:,}", right=True),
        Column("CONSUMER", lambda one: one.consumer),
        replace(time_column("SINCE", lambda one: one.first_failed_at, now), titled=True),
        replace(time_column("LAST", lambda one: one.last_failed_at, now), titled=True),
        Column("GENERATION", _generations, right=True),
        Column("AT", lambda one: short_frame(one.frame), titled=True),
        Column("ERROR", lambda one: one_line(f"{one.error_type}: {one.last_error}"), loose=True),
    ]
    show_list(settings(), found, columns, "no dead letters")
    if settings().tabular and found and found[0].fingerprint:
        note(f"example: holdfast dlq show {found[0].example}")
        note(f"replay: holdfast replay --group {found[0].fingerprint} --consumer {found[0].consumer} --dry-run")


add_bulk_action(
    cli, Action.DISCARD, "Discard dead letters permanently. They can still be listed, but no longer be replayed."
)


@command(cli, name="export")
@filter_options
@click.option("--limit", type=click.IntRange(1), help="Maximum number, newest first.  [default: all]")
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write to this file instead of stdout.",
)
def export(limit: int | None, output: Path | None, **chosen: Any) -> None:
    """Export dead letters with their messages, one JSON object per line."""
    from holdfast.interfaces.presentation.views import dumps

    ops = settings().operations()
    filter = delivery_filter(**chosen, state="waiting")
    if not ops.deliveries(filter, limit=1):
        ops.check_filter(filter)
    written = 0
    stream = _open_output(output)
    try:
        with ProgressLine("exported") as progress:
            for one in _all(ops, filter, limit):
                stream.write(dumps(one) + "\n")
                written += 1
                progress(written)
    finally:
        if output is not None:
            stream.close()
    note(f"exported {many(written, 'dead letter')}" + (f" to {output}" if output else ""))


def _all(ops: SyncOperations, filter: Filter, limit: int | None) -> Iterator[Exported]:
    before, left = None, sys.maxsize if limit is None else limit
    while left > 0:
        page = ops.export(filter, limit=min(_PAGE, left), before=before)
        yield from page
        if len(page) < _PAGE:
            return
        left -= len(page)
        before = page[-1].listed.delivery.id


def _open_output(output: Path | None) -> TextIO:
    if output is None:
        return sys.stdout
    try:
        return open(output, "w", encoding="utf-8", opener=private)
    except OSError as error:
        raise ConfigurationError(
            f"{output} cannot be written: {error.strerror}; choose another file with --output"
        ) from None


def _generations(group: FailureGroup) -> str:
    first, last = group.first_generation, group.last_generation
    if first is None and last is None:
        return "?"
    return str(last) if first == last else f"{'?' if first is None else first}..{'?' if last is None else last}"
