"""`holdfast schema`: the tables."""

from datetime import timedelta

import click

from holdfast.interfaces.cli.choose import DURATION
from holdfast.interfaces.cli.failure import Code
from holdfast.interfaces.cli.output import note, show_json
from holdfast.interfaces.cli.settings import command as make
from holdfast.interfaces.cli.settings import noun, settings


@noun("schema")
def command() -> None:
    """Make and check the tables."""


@make(command, name="sql")
def sql() -> None:
    """Print the tables as SQL, for people who apply it themselves; nothing is connected."""
    click.echo(settings().operations(make=True, check=False).schema_sql())


@make(command, name="status")
def status() -> Code:
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
    return Code.DONE if found.current else Code.PARTIAL


@make(command, name="migrate")
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
