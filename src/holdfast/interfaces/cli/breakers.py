"""`holdfast breakers`: lists, closes and opens circuit breakers."""

import click

from holdfast.interfaces.cli.output import note, show_list
from holdfast.interfaces.cli.queues import REASON
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.formatting import ago, moment
from holdfast.ops.breakers import BreakerState

_STYLES = {"open": "red", "half_open": "yellow", "probing": "yellow"}


@group("breakers")
def cli() -> None:
    """List, reset and trip circuit breakers. Breakers stored in Redis are not included."""


@command(cli, name="list")
def list_() -> None:
    """List the circuit breakers in the store that recorded a failure."""
    ops = settings().operations()
    found, now = ops.breakers(), ops.now()
    columns: list[Column[BreakerState]] = [
        Column("NAME", lambda one: one.name),
        Column("STATE", lambda one: one.state.value, style=lambda one: _STYLES.get(one.state.value, "green")),
        Column("FAILURES", lambda one: str(one.failures)),
        Column(
            "UNTIL",
            lambda one: "" if one.until is None else ago(one.until, now),
            longer=lambda one: moment(one.until, now),
        ),
        Column(
            "SINCE",
            lambda one: "" if one.since is None else ago(one.since, now),
            longer=lambda one: moment(one.since, now),
        ),
        Column("REASON", lambda one: one.why or ""),
    ]
    show_list(settings(), found, columns, "no circuit breaker has recorded a failure")


@command(cli, name="reset", acts=True)
@click.argument("name")
@REASON
def reset(name: str, reason: str | None) -> None:
    """Close a circuit and reset its failure count."""
    changed = settings().operations().reset_breaker(name, actor=settings().who(), reason=reason)
    note(f"circuit {name} closed" if changed else f"circuit {name} was already closed and had no failures")


@command(cli, name="trip", acts=True)
@click.argument("name")
@click.option("--for", "duration", default="1h", show_default=True, help="Time that it stays open, such as 10m.")
@REASON
def trip(name: str, duration: str, reason: str | None) -> None:
    """Open a circuit: calls fail immediately and deliveries park until the time is over and a probe succeeds."""
    settings().operations().trip_breaker(name, actor=settings().who(), duration=duration, reason=reason)
    note(f"circuit {name} opened for {duration}; close it with `holdfast breakers reset {name}`")
