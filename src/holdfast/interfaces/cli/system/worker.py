"""`holdfast worker`: runs the app's handlers."""

import os
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from holdfast.core.errors import ConfigurationError, HoldfastError
from holdfast.core.values.names import check_name
from holdfast.interfaces.cli.exit_codes import AppFailed
from holdfast.interfaces.cli.filters import DURATION, SIZE
from holdfast.interfaces.cli.next_command import next_command
from holdfast.interfaces.cli.settings import command, settings

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.engine.worker.options import WorkerOptions


@command(name="worker", logs=True)
@click.option("--queues", metavar="A:10,B", help="Only these queues, with slots per queue.  [default: all]")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    help="Slots in total; with --queues, slots of each queue without a number.",
)
@click.option(
    "--processes", type=click.IntRange(1, 256), default=1, show_default=True, help="Number of worker processes."
)
@click.option(
    "--lease",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Time after which deliveries of a dead worker are taken over.",
)
@click.option(
    "--grace",
    type=DURATION,
    default="30s",
    show_default=True,
    help="Time that running handlers have to finish at shutdown.",
)
@click.option(
    "--generation",
    type=click.IntRange(0),
    metavar="N",
    help="Generation (deploy) of this worker.  [default: the app's]",
)
@click.option("--until-idle", is_flag=True, help="Exit when no delivery is due within a minute.")
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_000),
    default=0,
    metavar="PORT",
    help="Serve Prometheus metrics and health on this port.  [default: off]",
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, metavar="HOST", help="Address to serve metrics on."
)
@click.option(
    "--max-deliveries",
    type=click.IntRange(1),
    metavar="N",
    help="Replace the process after about N deliveries.  [default: never]",
)
@click.option(
    "--max-memory",
    type=SIZE,
    metavar="SIZE",
    help="Replace the process when it uses this much memory, such as 512MB.  [default: never]",
)
@click.option("--suspects", is_flag=True, hidden=True)
def cli(queues: str | None, processes: int, generation: int | None, **given: Any) -> int:
    """Run the app's handlers until interrupted.

    The first SIGTERM or SIGINT stops claiming and lets running handlers finish within --grace. The second one stops
    immediately. With --max-deliveries or --max-memory, the worker runs in a child process that is drained and replaced.
    """
    from holdfast.engine.worker.options import WorkerOptions
    from holdfast.interfaces.cli.logs import configure_logs

    chosen = settings()
    slots = _queues(queues, given["concurrency"])
    options = WorkerOptions(queues=slots, generation=generation or 0, cron=not given["until_idle"], **given)
    configure_logs(chosen.log_format, chosen.log_level.lower(), partial(next_command, settings=chosen))
    if chosen.dsn is not None:
        # The app reads it on import, and so do the worker processes that are started.
        os.environ["HOLDFAST_DSN"] = chosen.dsn
    app = chosen.load_app()
    if chosen.dsn is not None and app.dsn != chosen.dsn:
        raise ConfigurationError(
            "the app sets its store explicitly, so --dsn has no effect; create it with Holdfast() so that it reads HOLDFAST_DSN"
        )
    if chosen.schema is not None and app.schema != chosen.schema:
        raise ConfigurationError(
            f"--schema {chosen.schema!r} differs from the app's schema {app.schema!r}; change it in the app"
        )
    spec = chosen.app_spec()
    assert spec is not None
    from holdfast.app.worker.supervisor import run_workers

    try:
        with _metrics_server(app, options, processes):
            return run_workers(spec, options, processes)
    except HoldfastError as error:
        from holdfast.app.worker.app_loader import AppNotFound

        if isinstance(error, AppNotFound):
            raise AppFailed(str(error)) from error
        raise


def _metrics_server(app: "Holdfast", options: "WorkerOptions", processes: int) -> AbstractContextManager[object]:
    """Serves metrics if this process runs the worker. Each child process serves its own on a separate port."""
    from holdfast.app.worker.supervisor import runs_here

    if not options.metrics_port or not runs_here(options, processes):
        return nullcontext()
    from holdfast.interfaces.metrics.server import serve_metrics

    return serve_metrics(app, options.metrics_host, options.metrics_port)


def _queues(text: str | None, slots: int) -> dict[str, int] | None:
    if text is None:
        return None
    found: dict[str, int] = {}
    for part in text.split(","):
        before, colon, count = part.strip().rpartition(":")
        name = before if colon else count
        if not name:
            raise click.UsageError(
                f"--queues {text!r} has an empty name; write NAME or NAME:SLOTS, separated by commas"
            )
        if colon and not count.isdecimal():
            raise click.UsageError(
                f"--queues has {part.strip()!r}, and {count!r} is not a number of slots; write {name}:{slots}, or "
                f"{part.strip()}:{slots} for a queue that has this name"
            )
        found[check_name("queue", name)] = int(count) if colon else slots
    return found
