"""`holdfast queues`, `breakers` and `workers`: lists without filters, and the actions on their items."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

import click

from holdfast.interfaces.cli.actions import add_actions
from holdfast.interfaces.cli.output import show_list, show_value, status_style
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, count_column, time_column
from holdfast.interfaces.presentation.actions import BREAKERS, QUEUES
from holdfast.interfaces.presentation.flow import flow_text
from holdfast.interfaces.presentation.formatting import ago, rough
from holdfast.interfaces.presentation.pending_count import QueuePending
from holdfast.ops.queries.pending_count import MOST_PENDING
from holdfast.ops.resources.breakers import BreakerState
from holdfast.ops.resources.queues import QueueState
from holdfast.stores.deliveries.worker import WorkerRecord
from holdfast.stores.queries.query import Filter

if TYPE_CHECKING:
    from holdfast.ops.service import SyncOperations

T = TypeVar("T")
_BREAKER_STYLES = {"open": "red", "half_open": "yellow", "probing": "yellow"}


def add_list(
    parent: click.Group, read: "Callable[[SyncOperations], Sequence[T]]", empty: str, name: str = "list"
) -> Callable[[Callable[[datetime], Sequence[Column[T]]]], None]:
    """Adds the command `name`, with the columns that the decorated function returns for the current time.

    The docstring of the function is the help of the command. `empty` is printed instead of an empty table.
    """

    def decorate(columns: Callable[[datetime], Sequence[Column[T]]]) -> None:
        @command(parent, name=name, help=columns.__doc__)
        def list_() -> None:
            ops = settings().operations()
            show_list(settings(), read(ops), columns(ops.now()), empty)

    return decorate


def paused_column(paused_at: Callable[[T], datetime | None], now: datetime) -> Column[T]:
    """A column that shows since when an item is paused."""
    return Column(
        "STATE", lambda one: f"paused {ago(at, now)}" if (at := paused_at(one)) else "", style=lambda _: "yellow"
    )


@group("queues")
def queues() -> None:
    """List, count, pause, resume and limit queues."""


@add_list(queues, lambda ops: ops.queues(), "no queues; a queue appears with its first consumer or job")
def _queue_columns(now: datetime) -> list[Column[QueueState]]:
    """List queues."""
    return [
        Column("QUEUE", lambda one: one.name),
        Column("STATE", lambda one: _queue_state(one, now), style=lambda _: "yellow"),
        count_column("PENDING", lambda one: one.pending),
        Column("LAG", lambda one: rough(one.lag) if one.lag else "", right=True),
        count_column("IN FLIGHT", lambda one: one.in_flight),
        count_column("FAILED", lambda one: one.failed, "red"),
        Column("WORKERS", lambda one: one.workers, right=True),
        Column("CONSUMERS", lambda one: ", ".join(one.consumers), loose=True),
        Column("FLOW", lambda one: flow_text(one.flow), loose=True),
    ]


def _queue_state(one: QueueState, now: datetime) -> str:
    if one.paused_at is not None:
        return f"paused {ago(one.paused_at, now)}"
    return f"paused: {', '.join(one.paused_consumers)}" if one.paused_consumers else ""


@command(queues, name="pending")
@click.argument("name")
@click.option("--consumer", metavar="NAME", help="Only the deliveries of this consumer.")
@click.option(
    "--most",
    type=click.IntRange(1, MOST_PENDING),
    default=10_000,
    show_default=True,
    help="Stop the count here. A larger number is shown with a plus sign, such as 10,000+.",
)
def pending(name: str, consumer: str | None, most: int) -> None:
    """Count the pending deliveries of a queue, also retry waits and later ones. A cheaper call than `stats`."""
    ops = settings().operations()
    found = ops.pending(name, consumer=consumer, most=most)
    if not found:
        ops.check_filter(Filter(queue=name, consumers=() if consumer is None else (consumer,)))
    show_value(settings(), QueuePending(name, consumer, found), lambda one: click.echo(f"{one.pending:,}"))


add_actions(queues, QUEUES)


@group("breakers")
def breakers() -> None:
    """List, reset and trip circuit breakers. Breakers stored in Redis are not included."""


@add_list(breakers, lambda ops: ops.breakers(), "no circuit breaker has recorded a failure")
def _breaker_columns(now: datetime) -> list[Column[BreakerState]]:
    """List the circuit breakers in the store that recorded a failure."""
    return [
        Column("NAME", lambda one: one.name),
        Column("STATE", lambda one: one.state.value, style=lambda one: _BREAKER_STYLES.get(one.state.value, "green")),
        Column("FAILURES", lambda one: str(one.failures)),
        time_column("UNTIL", lambda one: one.until, now),
        time_column("SINCE", lambda one: one.since, now),
        Column("REASON", lambda one: one.why or ""),
    ]


add_actions(breakers, BREAKERS)


@group("workers")
def workers() -> None:
    """List workers."""


@add_list(workers, lambda ops: ops.workers(), "no workers; start one with `holdfast worker --app module:attribute`")
def _worker_columns(now: datetime) -> list[Column[WorkerRecord]]:
    """List workers. `gone` means that the lease expired without a shutdown."""

    def state(one: WorkerRecord) -> str:
        return "alive" if one.alive else "gone"

    return [
        Column("WORKER", lambda one: one.id),
        Column("STATE", state, style=lambda one: status_style(state(one))),
        Column("GENERATION", lambda one: one.generation, right=True),
        count_column("IN FLIGHT", lambda one: one.in_flight),
        time_column("STARTED", lambda one: one.started_at, now),
        Column("LEASE", lambda one: ago(one.alive_until, now)),
        Column("QUEUES", lambda one: ", ".join(one.queues) or "all", loose=True),
        Column("CONSUMERS", lambda one: ", ".join(one.consumers), loose=True),
    ]
