"""`holdfast projectors`: shows the position of projectors and rebuilds them."""

import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

import click

from holdfast.interfaces.cli.actions import REASON
from holdfast.interfaces.cli.filters import ID
from holdfast.interfaces.cli.handlers.resources import add_list
from holdfast.interfaces.cli.output import note, show_json
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, count_column
from holdfast.interfaces.presentation.formatting import ago, many, many_deliveries, moment, one_line, rough
from holdfast.ops.resources.projectors import ProjectorState

if TYPE_CHECKING:
    from holdfast.projections.rebuild import RebuildProgress, Rebuilt


@group("projectors")
def cli() -> None:
    """List projectors and rebuild them from the event store."""


@add_list(cli, lambda ops: ops.projectors(), "no projectors; they register when an app with @hf.projector starts")
def _columns(now: datetime) -> list[Column[ProjectorState]]:
    """List projectors."""
    return [
        Column("PROJECTOR", lambda one: one.name),
        Column("RECEIVES", lambda one: ", ".join(one.patterns), loose=True),
        Column("POSITION", lambda one: f"{one.position:,} of {one.newest:,}", right=True),
        count_column("WAITING", lambda one: one.pending + one.in_flight),
        Column("LAG", lambda one: rough(one.lag) if one.lag else "", right=True),
        count_column("FAILED", lambda one: one.failed, "red"),
        Column("LAST RUN", lambda one: _last_run(one, now, ago), longer=lambda one: _last_run(one, now, moment)),
        Column("STATE", lambda one: _state(one, now), style=lambda one: "yellow"),
        Column("REBUILD", lambda one: _rebuild(one, now), loose=True),
    ]


@command(cli, name="rebuild", acts=True)
@click.argument("names", nargs=-1, metavar="NAME...", required=True)
@click.option("--resume", is_flag=True, help="Continue an interrupted rebuild. The handler must be unchanged.")
@click.option("--skip", type=ID, multiple=True, metavar="ID", help="Skip this event. Repeatable.")
@REASON
def rebuild(names: tuple[str, ...], resume: bool, skip: tuple[UUID, ...], reason: str | None) -> None:
    """Rebuild projectors from the event store with the app's handlers.

    A projector with swap= stays live until the new result replaces the old one. A projector without swap= is paused
    and its result is emptied first, so readers see partial results until the rebuild ends.
    """
    chosen = settings()
    app = chosen.load_app()
    click.get_current_context().call_on_close(app.store.close_sync)
    in_place = [name for name in names if app.projectors.handler(name).swap is None]
    if in_place:
        chosen.confirm("empty and rebuild in place", f"{', '.join(in_place)} (declared without swap=)")
    with _RebuildProgress() as show_progress:
        done = app.projectors.sync.rebuild(
            *names, actor=chosen.who(), reason=reason, resume=resume, skip=skip, progress=show_progress
        )
    if chosen.tabular:
        for one in done:
            note(_summary(one))
    else:
        show_json(chosen, done)


class _RebuildProgress:
    """Prints the progress, rate and remaining time of a rebuild to stderr."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._name, self._first, self._started, self._printed_at = "", 0, 0.0, 0.0
        self._open = False

    def __call__(self, progress: "RebuildProgress") -> None:
        now = time.monotonic()
        if progress.projector != self._name:
            self._name, self._first, self._started, self._printed_at = progress.projector, progress.applied, now, 0.0
        if now - self._printed_at < (0.2 if self._live else 2.0):
            return
        self._printed_at = now
        text = self._line(progress, now - self._started)
        if self._live:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
            self._open = True
        else:
            note(text)

    def _line(self, progress: "RebuildProgress", elapsed: float) -> str:
        text = f"{progress.projector}: applied {progress.applied:,} of about {progress.total:,}"
        rate = (progress.applied - self._first) / elapsed if elapsed > 0 else 0.0
        if rate:
            left = timedelta(seconds=(progress.total - progress.applied) / rate)
            text += f", {rate:,.0f}/s, {rough(left)} left"
        if progress.waiting:
            text += f"; waiting for {many(progress.waiting, 'run')} to end"
        return text

    def __enter__(self) -> "_RebuildProgress":
        return self

    def __exit__(self, *_: object) -> None:
        if self._open:
            click.echo("\r\x1b[K", err=True, nl=False)


def _summary(one: "Rebuilt") -> str:
    text = f"projector {one.projector}: {many(one.applied, 'event')} applied, " + (
        "new result active" if one.online else "rebuilt in place"
    )
    if one.skipped:
        text += f"; {many(one.skipped, 'event')} skipped"
    if one.done:
        text += f"; {many_deliveries(one.done)} completed by it"
    return text + (f", including {many(one.resolved, 'dead letter')}" if one.resolved else "")


def _last_run(one: ProjectorState, now: datetime, when: Callable[[datetime, datetime], str]) -> str:
    return "" if one.last_run is None else f"{one.last_run.outcome} {when(one.last_run.completed_at, now)}"


def _state(one: ProjectorState, now: datetime) -> str:
    if one.held:
        return "held by rebuild"
    if one.paused_at is not None:
        return f"paused {ago(one.paused_at, now)}"
    return "" if one.workers else "unserved"


def _rebuild(one: ProjectorState, now: datetime) -> str:
    rebuild = one.rebuild
    if rebuild is None:
        return ""
    if rebuild.state == "done" and rebuild.ended_at is not None:
        return f"done {ago(rebuild.ended_at, now)} by {rebuild.by}"
    far = f"{rebuild.applied:,} of about {rebuild.total or 0:,}"
    if rebuild.state == "stopped":
        return f"stopped at {far}: {one_line(rebuild.error)}"
    return f"running, {far}" if rebuild.alive else f"interrupted at {far}: rebuild again"
