"""System checks: `manage.py check`, and with `--database` the tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.db import connections

from holdfast.core.errors import HoldfastError, SchemaMismatch, WrongDatabase
from holdfast.django.app import project_app
from holdfast.django.configuration import DjangoConfiguration, read_configuration
from holdfast.django.database import database_of, is_in_memory, uses_test_database
from holdfast.runtime.store_factory import check_dsn
from holdfast.stores.connections.django import Django
from holdfast.stores.protocol import Store


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
    config: Any = apps.app_configs.get("holdfast")
    if config is not None and config.problem is not None:
        return [Error(str(config.problem), id="holdfast.E002")]
    return _check_database(configuration, database)


def _check_database(configuration: DjangoConfiguration, database: Any) -> list[CheckMessage]:
    if found := _check_dsn(configuration, database):
        return found
    if database.vendor != "sqlite":
        return []
    if is_in_memory(database):
        if uses_test_database(configuration.database):
            return []
        return [
            Warning(
                f"Database {configuration.database!r} is in memory, so no worker process reaches it.",
                hint="Use a file, or PostgreSQL.",
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


def _check_dsn(configuration: DjangoConfiguration, database: Any) -> list[CheckMessage]:
    """`DSN` names the database of the alias, as far as this is known without a connection."""
    alias, dsn = configuration.database, configuration.dsn
    if dsn is None or uses_test_database(alias):
        return []
    file, name = check_dsn(dsn), str(database.settings_dict["NAME"])
    remedy = "Leave 'DSN' out, or give another address of the same database: events commit together with your rows."
    other = f"settings.HOLDFAST['DSN'] is another database than DATABASES[{alias!r}]: "
    if (file is None) != (database.vendor == "postgresql"):
        kind = "PostgreSQL" if file is None else "SQLite"
        return [
            Error(
                f"{other}it is a {kind} database, the alias a {database.vendor} one.", hint=remedy, id="holdfast.E003"
            )
        ]
    if file is not None:
        if file.resolve() != Path(name).resolve():
            return [Error(f"{other}its file is {file}, that of the alias {name}.", hint=remedy, id="holdfast.E003")]
        return []
    from holdfast.stores.postgres.dsn import read_dsn

    given = read_dsn(dsn).get("dbname")
    if given and given != name:
        # A pooler may know a database under another name; `check --database` compares the databases themselves.
        return [
            Warning(
                f"settings.HOLDFAST['DSN'] names database {given!r}, and DATABASES[{alias!r}] names {name!r}.",
                hint=f"Run `manage.py check --database {alias}`, which compares them. {remedy}",
                id="holdfast.W004",
            )
        ]
    return []


def check_tables(databases: Sequence[str] | None = None, **_: Any) -> list[CheckMessage]:
    """The tables exist in the version that this release needs.

    A warning, because `manage.py migrate` runs this check first: an error would prevent it from creating the tables.
    """
    try:
        configuration = read_configuration()
        # Not the store of the app: connections that remain open would keep Django from dropping its test database.
        store = project_app()._open_store()
    except HoldfastError:
        return []  # `check_configuration` reports it
    if configuration.database not in (databases or ()) or configuration.database not in connections:
        return []
    try:
        _check_identity(configuration, store)
        store.check_schema()
    except WrongDatabase as error:
        return [Error(f"settings.HOLDFAST['DSN']: {error}", id="holdfast.E003")]
    except HoldfastError as error:
        remedy = "manage.py migrate" if configuration.migrate else "manage.py holdfast schema migrate"
        is_newer = isinstance(error, SchemaMismatch) and error.found is not None and error.found > error.expected
        # The message of the error ends with the command for projects without Django.
        problem = str(error) if is_newer else str(error).replace("; run `holdfast schema migrate`", "")
        return [Warning(problem, hint=None if is_newer else f"Run `{remedy}`.", id="holdfast.W003")]
    finally:
        store.close_sync()
    return []


def _check_identity(configuration: DjangoConfiguration, store: Store) -> None:
    """Raises `WrongDatabase` if `DSN` leads to another PostgreSQL database than the alias."""
    database = connections[configuration.database]
    if configuration.dsn is None or database.vendor != "postgresql" or store.dialect.name != "postgres":
        return
    if not uses_test_database(configuration.database):
        database.ensure_connection()
        store.verify_sync(Django(database))
