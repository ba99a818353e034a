"""`holdfast publish` and `holdfast enqueue`: publish one event, enqueue one job."""

import sys
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import click
import orjson

from holdfast.core.errors import InvalidPayload
from holdfast.core.events import payload
from holdfast.core.events.event import version_of
from holdfast.core.events.pattern import matches
from holdfast.interfaces.cli.filters import DURATION
from holdfast.interfaces.cli.output import note, show_value
from holdfast.interfaces.cli.settings import command, settings
from holdfast.ops.queries.messages import OPERATOR
from holdfast.stores.messages.publish import Published

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.ops.service import SyncOperations

_SHOWN = 20
_HEADERS = click.option(
    "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the message. Repeatable."
)


@command(name="publish", acts=True)
@click.argument("type")
@click.argument("body", metavar="JSON|-")
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
def cli(type: str, body: str, headers: tuple[str, ...], **options: Any) -> None:
    """Publish an event to its subscribers.

    With --app, the payload is checked against the event class of the app. A note names the nearest type if no consumer
    subscribes to this one.

    \b
      holdfast publish order.placed '{"order_id": 7}'
      jq -c . order.json | holdfast publish order.placed -
    """
    content, message_headers = read_json(body), read_headers(headers)
    ops, who = settings().operations(), settings().who()
    if settings().uses_app:
        _check_payload(settings().load_app(), type, content, message_headers)
    published = ops.publish(type, content, actor=who, headers=message_headers, **options)
    print_published(published, "published")
    if published.created:
        _note_without_subscribers(ops, type)


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
    """Enqueue a job with its arguments as a JSON object. With --app, they are checked against the parameters of the job.

    \b
      holdfast enqueue send_welcome '{"user_id": "u_1", "template": "first"}' --delay 5m
    """
    parameters, message_headers = read_json(arguments), read_headers(headers)
    if not isinstance(parameters, dict):
        raise InvalidPayload("$", "the arguments of a job must be a JSON object with its parameters by name")
    ops, who = settings().operations(), settings().who()
    if settings().uses_app:
        _check_arguments(settings().load_app(), job, parameters)
    print_published(ops.enqueue(job, parameters, actor=who, headers=message_headers, **options), "enqueued")


def print_published(published: Published, verb: str) -> None:
    """Prints the id of the stored message, and a note if it existed before."""

    def print_id(published: Published) -> None:
        click.echo(str(published.id))
        if not published.created:
            note(f"nothing was {verb}: this message already has the key")

    show_value(settings(), published, print_id)


def _check_payload(app: "Holdfast", type: str, body: object, headers: Mapping[str, object]) -> None:
    """Raises `InvalidPayload` if a consumer of the app with an event class could not read the payload."""
    text = payload.encode(body)
    version = version_of({name: str(value) for name, value in headers.items()})
    declared = {one.event.version: one.event for one in app.handlers.values() if one.event and one.event.name == type}
    for event in declared.values() if app.validate else ():
        if event.version == version:
            event.check(text)
        elif event.version > version:
            event.read(text, version)


def _check_arguments(app: "Holdfast", job: str, arguments: Mapping[str, object]) -> None:
    """Raises `InvalidPayload` if the job, which the app declares, does not take these arguments."""
    handler = app.handlers.get(job)
    if handler is not None and handler.parameters is not None and app.validate:
        handler.parameters.read(payload.encode(arguments))


def _note_without_subscribers(ops: "SyncOperations", type: str) -> None:
    """Says that no consumer gets an event of this type, with the nearest type that one subscribes to."""
    patterns = {pattern for one in ops.consumers() for pattern in one.patterns}
    patterns |= {pattern for one in ops.projectors() for pattern in one.patterns}
    if not any(matches(pattern, type) for pattern in patterns):
        near = get_close_matches(type, sorted(patterns), n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        subscribed = ", ".join(sorted(patterns)[:_SHOWN]) or "none yet"
        note(f"stored, but no consumer subscribes to {type}; {hint}subscribed types: {subscribed}")


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
