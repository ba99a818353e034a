"""`holdfast drill`: failure drills in a temporary store."""

import asyncio

import click

from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.output import console, note, show_json, show_list
from holdfast.interfaces.cli.settings import command, group, settings
from holdfast.interfaces.cli.table import Column
from holdfast.interfaces.drill.drills import DRILLS
from holdfast.interfaces.drill.report import DrillResult, perform


@group("drill")
def cli() -> None:
    """Run failure drills. Each one uses a temporary store and checks that the promises hold."""


@command(cli, name="list")
def list_() -> None:
    """List the drills and what each one shows."""
    columns: list[Column[dict[str, str]]] = [
        Column("NAME", lambda one: one["name"]),
        Column("SHOWS", lambda one: one["shows"]),
    ]
    rows = [{"name": name, "shows": " ".join((drill.__doc__ or "").split())} for name, drill in DRILLS.items()]
    show_list(settings(), rows, columns, "no drills")


@command(cli, name="run")
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option("--redis", metavar="URL", help="Run duplicate-events also on a temporary stream of this Redis server.")
def run(names: tuple[str, ...], redis: str | None) -> ExitCode:
    """Run the given drills, or all of them. Exits with 1 if a promise was broken.

    Without --dsn each drill uses a temporary SQLite file; with a PostgreSQL DSN each creates a temporary schema there and
    drops it at the end. HOLDFAST_DSN and HOLDFAST_REDIS are ignored: they probably name production servers.
    """
    unknown = [name for name in names if name not in DRILLS]
    if unknown:
        raise click.BadParameter(f"unknown drill {unknown[0]!r}; available: {', '.join(DRILLS)}")
    dsn = settings().dsn
    if dsn is not None and not dsn.startswith(("postgresql://", "postgres://")):
        raise click.BadParameter("give postgresql://…; SQLite is the default and needs no DSN", param_hint="--dsn")
    results = []
    for name in names or DRILLS:
        note(f"{name}: {' '.join((DRILLS[name].__doc__ or '').split())}")
        result = asyncio.run(perform(name, DRILLS[name], dsn, redis))
        results.append(result)
        if settings().tabular:
            _show(result)
    if not settings().tabular:
        show_json(settings(), results)
    broken = [result.name for result in results if not result.kept]
    note(f"broken: {', '.join(broken)}" if broken else f"all promises of {len(results)} drills were kept")
    return ExitCode.PARTIAL if broken else ExitCode.DONE


def _show(result: DrillResult) -> None:
    out = console()
    for check in result.checks:
        out.print(f"  {'kept  ' if check.kept else 'BROKEN'}  {check.promise}", style="" if check.kept else "red")
        if check.found:
            out.print(f"          {check.found}", style="red")
    out.print(
        f"  {'kept' if result.kept else 'BROKEN'} after {result.seconds} s", style="green" if result.kept else "red"
    )
