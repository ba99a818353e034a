"""`holdfast enqueue`: enqueues one job."""

from datetime import timedelta

import click

from holdfast.core.errors import InvalidPayload
from holdfast.interfaces.cli.arguments import read_headers, read_json
from holdfast.interfaces.cli.filters import DURATION
from holdfast.interfaces.cli.publish import print_published
from holdfast.interfaces.cli.settings import command, settings
from holdfast.ops.queries.messages import OPERATOR


@command(name="enqueue", acts=True)
@click.argument("job")
@click.argument("arguments", metavar="JSON|-")
@click.option("--delay", type=DURATION, metavar="DURATION", help="Delay before the first run: 30s, 5m, 2h.")
@click.option("--key", metavar="KEY", help="Idempotency key: the job is stored once per key.")
@click.option("--unique", metavar="KEY", help="Enqueue only if no unfinished job has this unique key.")
@click.option("--queue", metavar="NAME", help="Queue.  [default: the job's]")
@click.option("--priority", type=click.IntRange(0, 3), help="Priority, 0 is the highest.  [default: the job's]")
@click.option("--source", metavar="NAME", default=OPERATOR, show_default=True, help="Source of the message.")
@click.option("--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header of the message. Repeatable.")
@click.option("--force", is_flag=True, help="Enqueue even if no job of that name is registered.")
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
    parameters = read_json(arguments)
    if not isinstance(parameters, dict):
        raise InvalidPayload("$", "the arguments of a job must be a JSON object with its parameters by name")
    message_headers = read_headers(headers)
    published = (
        settings()
        .operations()
        .enqueue(
            job,
            parameters,
            actor=settings().who(),
            source=source,
            key=key,
            headers=message_headers,
            delay=delay,
            queue=queue,
            priority=priority,
            unique=unique,
            force=force,
        )
    )
    print_published(published, "enqueued")
