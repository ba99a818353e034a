"""`holdfast messages`: what was published."""

from uuid import UUID

import click

from holdfast.interfaces.cli.choose import ID, page_options
from holdfast.interfaces.cli.output import note, print_table, show_json, show_list
from holdfast.interfaces.cli.rows import delivery_columns, message_columns
from holdfast.interfaces.cli.settings import command as make
from holdfast.interfaces.cli.settings import noun, settings
from holdfast.interfaces.cli.words import moment, printable


@noun("messages")
def command() -> None:
    """Look at messages: they never change."""


@make(command, name="list")
@click.option("--type", metavar="TYPE", help="Of this type, or of all below it (order.*).")
@click.option("--source", metavar="NAME", help="From this source.")
@click.option("--key", metavar="KEY", help="With this key.")
@page_options
def list_(type: str | None, source: str | None, key: str | None, limit: int, before: UUID | None) -> None:
    """List messages, newest first."""
    ops = settings().operations()
    found = ops.messages(type=type, source=source, key=key, limit=limit, before=before)
    show_list(settings(), found, message_columns(ops.now()), "no message matches")


@make(command, name="show")
@click.argument("id", type=ID)
def show(id: UUID) -> None:
    """Show one message and how its deliveries are doing."""
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
        **{f"header {name}": value for name, value in message.headers.items()},
        "payload": message.payload,
    }
    width = max(map(len, facts))
    for name, value in facts.items():
        if value is not None:
            click.echo(f"{name:<{width}}  {printable(str(value))}")
    click.echo()
    if detail.deliveries:
        print_table(detail.deliveries, delivery_columns(now))
    else:
        note("no delivery: nobody subscribed to it, or they were pruned")
