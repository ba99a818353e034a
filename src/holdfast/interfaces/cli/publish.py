"""`holdfast publish`: publishes one event."""

import click

from holdfast.interfaces.cli.arguments import read_headers, read_json
from holdfast.interfaces.cli.output import note, show_json
from holdfast.interfaces.cli.settings import command, settings
from holdfast.ops.queries.messages import OPERATOR
from holdfast.stores.messages.publish import Published


@command(name="publish", acts=True)
@click.argument("type")
@click.argument("payload", metavar="JSON|-")
@click.option("--key", metavar="KEY", help="Idempotency key: the event is stored once per key.")
@click.option(
    "--source",
    metavar="NAME",
    default=OPERATOR,
    show_default=True,
    help="Source of the message. Keys are unique per source.",
)
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the message. Repeatable.")
@click.option("--generation", type=click.IntRange(0), default=0, show_default=True, help="Generation of the publisher.")
def cli(type: str, payload: str, key: str | None, source: str, headers: tuple[str, ...], generation: int) -> None:
    """Publish an event to its subscribers.

    \b
      holdfast publish order.placed '{"order_id": 7}'
      jq -c . order.json | holdfast publish order.placed -
    """
    body, message_headers = read_json(payload), read_headers(headers)
    published = (
        settings()
        .operations()
        .publish(
            type, body, actor=settings().who(), source=source, key=key, headers=message_headers, generation=generation
        )
    )
    print_published(published, "published")


def print_published(published: Published, verb: str) -> None:
    """Prints the id of the stored message, and a note if it existed before."""
    if not settings().tabular:
        show_json(settings(), published)
        return
    click.echo(str(published.id))
    if not published.created:
        note(f"nothing was {verb}: this message already has the key")
