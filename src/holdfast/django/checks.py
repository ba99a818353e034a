"""System checks: `manage.py check`, and with `--database` the tables."""

from collections.abc import Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from holdfast.core.errors import HoldfastError, SchemaMismatch
from holdfast.django.app import project_app
from holdfast.django.configuration import DjangoConfiguration, read_configuration
from holdfast.django.database import database_of, is_in_memory


def check_configuration(**_: Any) -> list[CheckMessage]:
    """`settings.HOLDFAST` is complete, and its database can be used."""
    try:
        configuration = read_configuration()
        database = database_of(configuration.database)
    except HoldfastError as error:
        return [Error(str(error), id="holdfast.E001")]
    try:
        project_app()
    except HoldfastError as error:
        return [Error(str(error), id="holdfast.E002")]
    return _check_database(configuration, database)


def _check_database(configuration: DjangoConfiguration, database: Any) -> list[CheckMessage]:
    if configuration.dsn is not None or database.vendor != "sqlite":
        return []
    if is_in_memory(database):
        return [
            Warning(
                f"Database {configuration.database!r} is in memory, so no worker process reaches it.",
                hint="Use a file, or PostgreSQL. In tests this is fine.",
                id="holdfast.W001",
            )
        ]
    if str(database.settings_dict["OPTIONS"].get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        return [
            Warning(
                f"Transactions on SQLite database {configuration.database!r} begin without the write lock, so one that reads "
                "before it publishes fails with 'database is locked' if another process wrote in the meantime.",
                hint=f"Set DATABASES[{configuration.database!r}]['OPTIONS'] = {{'transaction_mode': 'IMMEDIATE'}}.",
                id="holdfast.W002",
            )
        ]
    return []


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """The tables exist in the version that this release needs.

    A warning, because `manage.py migrate` runs this check first: an error would prevent it from creating the tables.
    """
    try:
        configuration = read_configuration()
        store = project_app().store
    except HoldfastError:
        return []  # `check_configuration` reports it
    if configuration.database not in (databases or ()) or configuration.database not in connections:
        return []
    try:
        store.check_schema()
    except HoldfastError as error:
        remedy = "manage.py migrate" if configuration.migrate else "manage.py holdfast schema migrate"
        is_newer = isinstance(error, SchemaMismatch) and error.found is not None and error.found > error.expected
        # The message of the error ends with the command for projects without Django.
        problem = str(error) if is_newer else str(error).replace("; run `holdfast schema migrate`", "")
        return [Warning(problem, hint=None if is_newer else f"Run `{remedy}`.", id="holdfast.W003")]
    return []
