"""`holdfast demo`: watch a shop lose its mail server, a worker and a partner, and nothing else."""

import click
from rich.console import Console

from holdfast.interfaces.cli.settings import settings
from holdfast.interfaces.demo.run import SHORTEST_SECONDS, run_demo


@click.command(name="demo")
@click.option(
    "--seconds",
    type=click.FloatRange(min=SHORTEST_SECONDS),
    help="Tell the story once, in about so many seconds, and end by itself. Without it the demo goes on until Ctrl-C.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="For the web console.  [default: one that is free]")
@click.option("--no-browser", is_flag=True, help="Open no browser on the web console.")
@click.option(
    "--dsn",
    metavar="DSN",
    help="A PostgreSQL database to use in place of a temporary SQLite file. The demo makes a schema of its own there "
    "and drops it at the end.",
)
def command(seconds: float | None, port: int | None, no_browser: bool, dsn: str | None) -> int:
    """A shop takes orders while the things around it die. It checks its own promises and exits 1 if one broke.

    Needs no app, no set-up and no network.
    """
    # Only a DSN that was given here: one in the environment belongs to something real.
    dsn = dsn or settings().dsn
    if dsn is not None and not dsn.startswith(("postgresql://", "postgres://")):
        raise click.BadParameter("give postgresql://…; SQLite is the default and needs no DSN", param_hint="--dsn")
    return run_demo(
        Console(highlight=False, markup=False), seconds, dsn, port=port or 0, browser=not no_browser and seconds is None
    )
