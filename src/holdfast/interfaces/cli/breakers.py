"""`holdfast breakers`: lists, closes and opens circuit breakers."""

from holdfast.interfaces.cli.actions import add_actions
from holdfast.interfaces.cli.output import show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.presentation.actions import BREAKERS
from holdfast.interfaces.presentation.formatting import ago, moment
from holdfast.ops.resources.breakers import BreakerState

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


add_actions(cli, BREAKERS)
