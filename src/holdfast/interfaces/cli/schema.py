"""`holdfast schema`: the tables."""

from datetime import timedelta

import click

from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import DURATION
from holdfast.interfaces.cli.output import note, show_json
from holdfast.interfaces.cli.settings import command, group, settings


@group("schema")
def cli() -> None:
    """Make and check the tables."""


@command(cli, name="sql")
def sql() -> None:
    """Print the tables as SQL, for people who apply it themselves; nothing is connected."""
    click.echo(settings().operations(make=True, check=False).schema_sql())


@command(cli, name="status")
def status() -> ExitCode:
    """Say which version the tables have; exit 1 unless it is the one this release needs."""
    found = settings().operations(check=False).schema_status()
    if not settings().tabular:
        show_json(
            settings(),
            {"schema": found.schema, "found": found.found, "expected": found.expected, "current": found.current},
        )
    elif found.current:
        click.echo(f"schema {found.schema} is at version {found.found}, as this release needs")
    else:
        has = "has no tables" if found.found is None else f"is at version {found.found}"
        click.echo(f"schema {found.schema} {has}; this release needs version {found.expected}")
        newer = found.found is not None and found.found > found.expected
        note("upgrade holdfast here" if newer else "run `holdfast schema migrate`")
    return ExitCode.DONE if found.current else ExitCode.PARTIAL


@command(cli, name="migrate")
@click.option("--lock-timeout", type=DURATION, default="10s", show_default=True, help="How long to wait for the lock.")
def migrate(lock_timeout: timedelta) -> None:
    """Bring the tables to the version this release needs. Safe to run twice, and while workers run."""
    applied = settings().operations(make=True, check=False).migrate(lock_timeout)
    if not settings().tabular:
        show_json(settings(), {"applied": applied})
        return
    for name in applied:
        click.echo(name)
    note("the tables are up to date" if applied else "the tables were up to date")
