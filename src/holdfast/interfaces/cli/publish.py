"""`holdfast publish`: one event by hand."""

import click

from holdfast.interfaces.cli.arguments import read_headers, read_json
from holdfast.interfaces.cli.output import note, show_json
from holdfast.interfaces.cli.settings import command, settings
from holdfast.ops.messages import OPERATOR
from holdfast.stores.publish import Published


@command(name="publish", acts=True)
@click.argument("type")
@click.argument("payload", metavar="JSON|-")
@click.option("--key", metavar="KEY", help="Store it once under this key.")
@click.option("--source", metavar="NAME", default=OPERATOR, show_default=True, help="Keys are unique within a source.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--generation", type=click.IntRange(0), default=0, show_default=True, help="The publisher's generation.")
def cli(type: str, payload: str, key: str | None, source: str, headers: tuple[str, ...], generation: int) -> None:
    """Publish an event to everyone who subscribed.

    \b
      holdfast publish order.placed '{"order_id": 7}'
      jq -c . order.json | holdfast publish order.placed -
    """
    body, carried = read_json(payload), read_headers(headers)
    published = (
        settings()
        .operations()
        .publish(type, body, actor=settings().who(), source=source, key=key, headers=carried, generation=generation)
    )
    print_published(published, "published")


def print_published(published: Published, verb: str) -> None:
    """Prints the id of what was stored; says so when it had been before."""
    if not settings().tabular:
        show_json(settings(), published)
        return
    click.echo(str(published.id))
    if not published.created:
        note(f"nothing was {verb}: this is the message that holds the key")
