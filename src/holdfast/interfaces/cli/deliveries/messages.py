"""`holdfast messages`: published messages."""

from typing import Any
from uuid import UUID

import click

from holdfast.core.errors import NotFound
from holdfast.core.values.text import truncated
from holdfast.interfaces.cli.deliveries.columns import delivery_columns, message_columns
from holdfast.interfaces.cli.filters import ID, SINCE, TIME, page_options
from holdfast.interfaces.cli.next_command import with_store
from holdfast.interfaces.cli.output import note, print_table, show_json, show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.presentation.deliveries import state
from holdfast.interfaces.presentation.formatting import moment, one_line, printable, stored_text
from holdfast.ops.queries.request_trace import MAX_TRACED


@group("messages")
def cli() -> None:
    """List and show published messages. Messages are immutable."""


@command(cli, name="list")
@click.option("--type", metavar="TYPE", help="Only this type, or a prefix (order.*).")
@click.option("--source", metavar="NAME", help="Only from this source.")
@click.option("--key", metavar="KEY", help="Only with this key.")
@click.option("--since", type=SINCE, metavar="TIME", help="Published since: 2h, 3d, 2026-11-15T09:00Z.")
@click.option("--until", type=TIME, metavar="TIME", help="Published before.")
@page_options
def list_(**chosen: Any) -> None:
    """List messages, newest first."""
    ops = settings().operations()
    found = ops.messages(**chosen)
    if not found and chosen["type"] is not None:
        ops.check_type_exists(chosen["type"])
    show_list(settings(), found, message_columns(ops.now()), "no matching messages")


@command(cli, name="show")
@click.argument("id", type=ID)
def show(id: UUID) -> None:
    """Show one message and the state of its deliveries."""
    ops = settings().operations()
    detail = ops.message(id)
    if not settings().tabular:
        show_json(settings(), detail)
        return
    message, now = detail.message, ops.now()
    facts = {
        "message": message.id,
        "type": message.type,
        "source": message.source,
        "key": message.key,
        "published": moment(message.occurred_at, now),
        "generation": message.generation,
        **{f"header {one_line(name)}": one_line(str(value)) for name, value in message.headers.items()},
        "payload": stored_text(message.payload),
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            click.echo(f"{name:<{width}}  {printable(str(value))}")
    click.echo()
    if detail.deliveries:
        print_table(detail.deliveries, delivery_columns(now))
    else:
        note("no deliveries: no consumer subscribed to it, or they were pruned")


@command(cli, name="trace")
@click.argument("request_id")
@click.option(
    "--limit", type=click.IntRange(1, MAX_TRACED), default=20, show_default=True, help="Maximum number of messages."
)
@click.option("--after", type=ID, metavar="ID", help="Start after this message, the last one of the previous page.")
def trace(request_id: str, limit: int, after: UUID | None) -> None:
    """Trace one request by its id: its messages, their deliveries and runs, and operator actions."""
    ops = settings().operations()
    trail = ops.trace_request(request_id, limit=limit, after=after)
    if not trail.steps and not trail.audit and after is None:
        raise NotFound("request", request_id, "no message and no audit entry has this request id, or they were pruned")
    if not settings().tabular:
        show_json(settings(), trail)
        return
    now = ops.now()
    for step in trail.steps:
        message = step.message
        click.echo(f"{message.type} from {message.source}, {moment(message.occurred_at, now)}, message {message.id}")
        for followed in step.deliveries:
            row = followed.listed.delivery
            click.echo(f"  {row.consumer}: {state(followed.listed).replace('_', ' ')}, delivery {row.id}")
            for run in followed.runs:
                error = f": {truncated(one_line(run.error), 160)}" if run.error else ""
                when, outcome = moment(run.completed_at, now), run.outcome.replace("_", " ")
                click.echo(f"    run {run.attempt} {outcome}, {when} on {printable(run.worker)}{error}")
        if step.more:
            click.echo(with_store(f"  more deliveries: holdfast messages show {message.id}"))
    for entry in trail.audit:
        why = f": {one_line(entry.reason)}" if entry.reason else ""
        did = f"{entry.actor} {entry.action} {entry.kind} {entry.target}"
        click.echo(f"{printable(did)}, {moment(entry.at, now)}{why}")
    if trail.next is not None:
        note(f"more messages: add --after {trail.next}")
