"""`holdfast enqueue`: one job by hand."""

from datetime import timedelta

import click

from holdfast.core.errors import InvalidPayload
from holdfast.interfaces.cli.arguments import read_headers, read_json
from holdfast.interfaces.cli.filters import DURATION
from holdfast.interfaces.cli.publish import print_published
from holdfast.interfaces.cli.settings import command, settings
from holdfast.ops.messages import OPERATOR


@command(name="enqueue", acts=True)
@click.argument("job")
@click.argument("arguments", metavar="JSON|-")
@click.option("--delay", type=DURATION, metavar="DURATION", help="Run it so much later: 30s, 5m, 2h.")
@click.option("--key", metavar="KEY", help="Run it once for this key, for ever.")
@click.option("--unique", metavar="KEY", help="Store it only if none with this key is unfinished.")
@click.option("--queue", metavar="NAME", help="In this queue.  [default: the job's]")
@click.option("--priority", type=click.IntRange(0, 3), help="0 first.  [default: the job's]")
@click.option("--source", metavar="NAME", default=OPERATOR, show_default=True, help="Keys are unique within a source.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="A header; may be repeated.")
@click.option("--force", is_flag=True, help="Store it although no job of that name has registered.")
def cli(
    job: str,
    arguments: str,
    delay: timedelta | None,
    key: str | None,
    unique: str | None,
    queue: str | None,
    priority: int | None,
    source: str,
    headers: tuple[str, ...],
    force: bool,
) -> None:
    """Enqueue a job with its arguments as a JSON object.

    \b
      holdfast enqueue send_welcome '{"user_id": "u_1", "template": "first"}' --delay 5m
    """
    given = read_json(arguments)
    if not isinstance(given, dict):
        raise InvalidPayload("$", "a job's arguments are a JSON object that names its parameters")
    carried = read_headers(headers)
    published = (
        settings()
        .operations()
        .enqueue(
            job,
            given,
            actor=settings().who(),
            source=source,
            key=key,
            headers=carried,
            delay=delay,
            queue=queue,
            priority=priority,
            unique=unique,
            force=force,
        )
    )
    print_published(published, "enqueued")
