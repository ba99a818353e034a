"""`holdfast consumers`: lists, pauses and retires consumers, lists their keys, changes limits, backfills messages."""

import shlex
from datetime import datetime

import click

from holdfast.interfaces.cli.actions import REASON, add_actions
from holdfast.interfaces.cli.filters import PAGE, SINCE
from holdfast.interfaces.cli.handlers.resources import add_list
from holdfast.interfaces.cli.output import ProgressLine, note, print_table, show_json
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column, count_column
from holdfast.interfaces.presentation.actions import CONSUMERS
from holdfast.interfaces.presentation.flow import flow_text, hold_text, key_text
from holdfast.interfaces.presentation.formatting import ago, many_deliveries, rough
from holdfast.ops.queries.flow_keys import Hold, KeyFilter, KeyPage, KeyState
from holdfast.ops.resources.consumers import ConsumerState


@group("consumers")
def cli() -> None:
    """List, pause, limit, retire and catch up consumers. List, pause and resume their keys."""


@add_list(cli, lambda ops: ops.consumers(), "no consumers; they register when a worker starts or the app publishes")
def _columns(now: datetime) -> list[Column[ConsumerState]]:
    """List consumers and jobs."""

    def state(one: ConsumerState) -> str:
        if one.paused_at is not None:
            return f"paused {ago(one.paused_at, now)}"
        if one.blocked_until is not None:
            return f"blocked: {one.blocked_resource} ({ago(one.blocked_until, now)})"
        if one.queue_paused_at is not None:
            return f"queue paused {ago(one.queue_paused_at, now)}"
        return "" if one.workers else "unserved"

    return [
        Column("CONSUMER", lambda one: one.name),
        Column("RECEIVES", _gets, loose=True),
        Column("QUEUE", lambda one: one.queue),
        Column("STATE", state, style=lambda one: "yellow"),
        count_column("PENDING", lambda one: one.pending),
        Column("LAG", lambda one: rough(one.lag) if one.lag else "", right=True),
        count_column("IN FLIGHT", lambda one: one.in_flight),
        count_column("FAILED", lambda one: one.failed, "red"),
        Column("WORKERS", lambda one: one.workers, right=True),
        Column("GENERATION", lambda one: "" if one.live_generation is None else one.live_generation, right=True),
        Column("FLOW", lambda one: flow_text(one.flow), loose=True),
    ]


def _gets(one: ConsumerState) -> str:
    patterns = ", ".join(one.patterns) or one.reads_from or "job"
    return patterns if one.relays_to is None else f"{patterns} → {one.relays_to}"


@command(cli, name="resume", acts=True)
@click.argument("name")
@REASON
def resume(name: str, reason: str | None) -> None:
    """Resume a paused or blocked consumer."""
    ops = settings().operations()
    resumed = ops.resume_consumer(name, actor=settings().who(), reason=reason)
    unblocked = ops.unblock_consumer(name, actor=settings().who(), reason=reason)
    note(f"consumer {name} resumed" if resumed or unblocked else f"consumer {name} was neither paused nor blocked")


@command(cli, name="keys")
@click.argument("name")
@click.option(
    "--state",
    type=click.Choice([one.value for one in KeyFilter]),
    default=KeyFilter.ALL.value,
    show_default=True,
    help="Only keys with waiting or running deliveries, blocked by a dead letter, paused, at the limit or at the rate.",
)
@click.option("--prefix", default="", metavar="TEXT", help="Only keys that begin with TEXT.")
@click.option("--limit", type=PAGE, default=50, show_default=True, help="Maximum number of keys.")
@click.option("--after", metavar="KEY", help="Only keys after this one, for the next page.")
def keys(name: str, state: str, prefix: str, limit: int, after: str | None) -> None:
    """List the keys of a consumer with flow control: what waits, what runs, and what holds each key up.

    Counts of a key stop at 1,000 and are then shown as 1,000+.
    """
    page = settings().operations().keys(name, state=KeyFilter(state), prefix=prefix, limit=limit, after=after)
    if not settings().tabular:
        show_json(settings(), page)
        return
    note(f"{name}: {flow_text(page.flow)}; {page.running:,} running")
    for obstacle in page.obstacles:
        note(f"all keys wait: {obstacle}")
    if page.keys:
        print_table(page.keys, _key_columns(page))
    else:
        note("no keys" if page.next is None else "no keys among these")
    if page.next is not None:
        note(f"next page: add --after {shlex.quote(page.next)}")
    for one in page.keys:
        if one.hold is Hold.DEAD_LETTER:
            note(f"see what blocks {key_text(one.key, page.flow)}: holdfast dlq show {one.blocked_by}")
            break


def _key_columns(page: KeyPage) -> list[Column[KeyState]]:
    now = page.now
    return [
        Column("KEY", lambda one: key_text(one.key, page.flow)),
        count_column("WAITING", lambda one: one.waiting),
        count_column("DUE", lambda one: one.due),
        count_column("RUNNING", lambda one: one.running),
        Column(
            "OLDEST",
            lambda one: rough(now - one.oldest_at) if one.oldest_at and one.oldest_at < now else "",
            right=True,
        ),
        Column("HELD UP", lambda one: hold_text(one, now), style=lambda one: "yellow"),
    ]


@command(cli, name="catch-up", acts=True)
@click.argument("name", required=False)
@click.option(
    "--from", "since", type=SINCE, metavar="TIME", help="Only events published since: 2h, 3d, 2026-11-15T09:00Z."
)
def catch_up(name: str | None, since: datetime | None) -> None:
    """Create the deliveries that subscriptions missed. Workers also do this automatically.

    With NAME, that consumer gets a delivery of every stored event for which it has none, including events published before
    it subscribed. Events whose delivery was completed and pruned are left out.
    """
    if since is not None and name is None:
        raise click.UsageError("--from requires the NAME of a consumer")
    with ProgressLine("added") as progress:
        added = settings().operations().catch_up(name, since=since, actor=settings().who(), progress=progress)
    if settings().tabular:
        note(f"added {many_deliveries(added)}" + (f" of {name}" if name else ""))
    else:
        show_json(settings(), {"added": added})


add_actions(cli, CONSUMERS)
