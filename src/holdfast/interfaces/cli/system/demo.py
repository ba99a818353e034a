"""`holdfast demo`: a shop that survives the failure of its mail server, a worker and a partner."""

import click
from rich.console import Console

from holdfast.interfaces.cli.settings import ExampledCommand, settings
from holdfast.interfaces.demo.run import SHORTEST_SECONDS, run_demo


@click.command(name="demo", cls=ExampledCommand)
@click.option(
    "--seconds",
    type=click.FloatRange(min=SHORTEST_SECONDS),
    help="Run the scenario once, in about this many seconds, and exit. Without it the demo runs until Ctrl-C.",
)
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the web console.  [default: any free port]")
@click.option("--no-browser", is_flag=True, help="Do not open a browser.")
@click.option(
    "--dsn",
    metavar="DSN",
    help="Use this PostgreSQL database instead of a temporary SQLite file. The demo creates a temporary schema there "
    "and drops it at the end.",
)
def cli(seconds: float | None, port: int | None, no_browser: bool, dsn: str | None) -> int:
    """Run a shop whose services and workers fail. Checks that nothing is lost; exits with 1 if a promise is broken.

    Needs no app, no configuration and no network.
    """
    # HOLDFAST_DSN is ignored: it probably names a production store.
    dsn = dsn or settings().dsn
    if dsn is not None and not dsn.startswith(("postgresql://", "postgres://")):
        raise click.BadParameter("give postgresql://…; SQLite is the default and needs no DSN", param_hint="--dsn")
    return run_demo(
        Console(highlight=False, markup=False), seconds, dsn, port=port or 0, browser=not no_browser and seconds is None
    )
