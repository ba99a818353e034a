"""`holdfast publish` and `holdfast enqueue`: publish one event, enqueue one job."""

import sys
from typing import Any

import click
import orjson

from holdfast.core.errors import InvalidPayload
from holdfast.interfaces.cli.filters import DURATION
from holdfast.interfaces.cli.output import note, show_value
from holdfast.interfaces.cli.settings import command, settings
from holdfast.ops.queries.messages import OPERATOR
from holdfast.stores.messages.publish import Published

_HEADERS = click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the message. Repeatable."
)


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
@_HEADERS
@click.option(
    "--generation", type=click.IntRange(0), default=0, show_default=True, help="Generation (deploy) of the publisher."
)
def cli(type: str, payload: str, headers: tuple[str, ...], **options: Any) -> None:
    """Publish an event to its subscribers.

    \b
      holdfast publish order.placed '{"order_id": 7}'
      jq -c . order.json | holdfast publish order.placed -
    """
    body, message_headers = read_json(payload), read_headers(headers)
    ops, who = settings().operations(), settings().who()
    print_published(ops.publish(type, body, actor=who, headers=message_headers, **options), "published")


@command(name="enqueue", acts=True)
@click.argument("job")
@click.argument("arguments", metavar="JSON|-")
@click.option("--delay", type=DURATION, metavar="DURATION", help="Delay before the first run: 30s, 5m, 2h.")
@click.option("--key", metavar="KEY", help="Idempotency key: the job is stored once per key.")
@click.option("--unique", metavar="KEY", help="Enqueue only if no unfinished job has this unique key.")
@click.option("--queue", metavar="NAME", help="Queue.  [default: the job's]")
@click.option("--priority", type=click.IntRange(0, 3), help="Priority, 0 is the highest.  [default: the job's]")
@click.option("--source", metavar="NAME", default=OPERATOR, show_default=True, help="Source of the message.")
@_HEADERS
@click.option("--force", is_flag=True, help="Enqueue even if no job of that name is registered.")
def enqueue(job: str, arguments: str, headers: tuple[str, ...], **options: Any) -> None:
    """Enqueue a job with its arguments as a JSON object.

    \b
      holdfast enqueue send_welcome '{"user_id": "u_1", "template": "first"}' --delay 5m
    """
    parameters, message_headers = read_json(arguments), read_headers(headers)
    if not isinstance(parameters, dict):
        raise InvalidPayload("$", "the arguments of a job must be a JSON object with its parameters by name")
    ops, who = settings().operations(), settings().who()
    print_published(ops.enqueue(job, parameters, actor=who, headers=message_headers, **options), "enqueued")


def print_published(published: Published, verb: str) -> None:
    """Prints the id of the stored message, and a note if it existed before."""

    def print_id(published: Published) -> None:
        click.echo(str(published.id))
        if not published.created:
            note(f"nothing was {verb}: this message already has the key")

    show_value(settings(), published, print_id)


def read_json(text: str) -> Any:
    """Parses an argument as JSON, or stdin if the argument is `-`."""
    given = sys.stdin.buffer.read() if text == "-" else text.encode("utf-8", "surrogateescape")
    try:
        return orjson.loads(given)
    except orjson.JSONDecodeError as error:
        where = "stdin" if text == "-" else "the argument"
        raise InvalidPayload(
            "$", f"{where} is not JSON ({error}); quote it for the shell, such as '{{\"id\": 1}}'"
        ) from None


def read_headers(pairs: tuple[str, ...]) -> dict[str, object]:
    """Parses headers from NAME=VALUE pairs."""
    headers: dict[str, object] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--header {pair!r} does not have the form NAME=VALUE")
        headers[name] = value
    return headers
