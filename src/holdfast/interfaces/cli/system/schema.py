"""`holdfast schema`: creates and checks the tables."""

from datetime import timedelta

import click

from holdfast.interfaces.cli.exit_codes import ExitCode
from holdfast.interfaces.cli.filters import DURATION
from holdfast.interfaces.cli.output import note, show_json
from holdfast.interfaces.cli.settings import command, group, settings


@group("schema")
def cli() -> None:
    """Create and migrate the tables, and show their version."""


@command(cli, name="sql")
def sql() -> None:
    """Print the schema as SQL. Does not connect to the store."""
    click.echo(settings().operations(create=True, check=False).schema_sql())


@command(cli, name="status")
def status() -> ExitCode:
    """Show the schema version. Exits with 1 unless it matches this release."""
    found = settings().operations(check=False).schema_status()
    if not settings().tabular:
        show_json(
            settings(),
            {"schema": found.schema, "found": found.found, "expected": found.expected, "current": found.current},
        )
    elif found.current:
        click.echo(f"schema {found.schema} is at version {found.found}, which this release requires")
    else:
        has = "has no tables" if found.found is None else f"is at version {found.found}"
        click.echo(f"schema {found.schema} {has}; this release requires version {found.expected}")
        newer = found.found is not None and found.found > found.expected
        note("upgrade holdfast" if newer else "run `holdfast schema migrate`")
    return ExitCode.DONE if found.current else ExitCode.PARTIAL


@command(cli, name="migrate")
@click.option("--lock-timeout", type=DURATION, default="10s", show_default=True, help="Maximum wait for the lock.")
def migrate(lock_timeout: timedelta) -> None:
    """Migrate the schema to the version of this release. Safe to repeat, and safe while workers run."""
    applied = settings().operations(create=True, check=False).migrate(lock_timeout)
    if not settings().tabular:
        show_json(settings(), {"applied": applied})
        return
    for name in applied:
        click.echo(name)
    note("the schema is up to date" if applied else "the schema was already up to date")
