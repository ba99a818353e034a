"""The store of a Django database alias."""

from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.apps import apps
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.utils.connection import ConnectionDoesNotExist

from holdfast.core.errors import ConfigurationError


def database_of(alias: str) -> Any:
    """Django's connection of an alias in this thread; raises `ConfigurationError` for one that cannot be used."""
    try:
        found = connections[alias]
    except (ConnectionDoesNotExist, ImproperlyConfigured) as error:
        raise ConfigurationError(
            f"settings.HOLDFAST['DATABASE'] is {alias!r}, which Django cannot open ({error}); the aliases are "
            f"{', '.join(connections) or 'none'}"
        ) from None
    if found.vendor not in ("postgresql", "sqlite"):
        raise ConfigurationError(
            f"settings.HOLDFAST['DATABASE'] is {alias!r}, a {found.vendor} database; Holdfast needs PostgreSQL or SQLite"
        )
    return found


def is_in_memory(database: Any) -> bool:
    """Whether only connections of this process reach the database, like the default test database on SQLite."""
    return database.vendor == "sqlite" and bool(database.is_in_memory_db())


def uses_test_database(alias: str) -> bool:
    """Whether Django's test runner has replaced the database of this alias by a test database.

    Then tests are running, and the name is not the one with which the project started. The test environment alone is not
    enough: in a shell, `setup_test_environment()` leaves the real database in place.
    """
    if not hasattr(mail, "outbox"):  # only tests have it
        return False
    config, settings = apps.app_configs.get("holdfast"), connections.settings.get(alias)
    if config is None or settings is None:
        return False
    return bool(str(settings["NAME"]) != config.names_at_start.get(alias))


def dsn_of(database: Any) -> str:
    """The DSN of a database: the test database while Django's test runner uses one."""
    settings = database.settings_dict
    if database.vendor == "sqlite":
        name = str(settings["NAME"])
        if name.startswith("file:"):
            raise ConfigurationError(
                f"database {database.alias!r} has the name {name!r}; give the path of a file without 'file:'"
            )
        # A store and its workers must find the file from any directory.
        return f"sqlite:///{quote(str(Path(name).absolute()))}"
    parameters = {"user": settings["USER"], "password": settings["PASSWORD"]}
    login = ":".join(quote(str(value), safe="") for value in parameters.values() if value)
    host = quote(str(settings["HOST"]), safe="[]:") if settings["HOST"] else ""
    port = f":{settings['PORT']}" if settings["PORT"] else ""
    options = {name: value for name, value in settings["OPTIONS"].items() if name in _libpq_options()}
    query = f"?{urlencode(options, quote_via=quote)}" if options else ""
    return f"postgresql://{login}{'@' if login else ''}{host}{port}/{quote(str(settings['NAME'] or ''))}{query}"


def _libpq_options() -> set[str]:
    """The names that a connection string may have; Django takes others, such as `pool` and `isolation_level`."""
    try:
        from psycopg import pq
    except ImportError as error:
        raise ConfigurationError("PostgreSQL needs a driver; run `pip install 'holdfast[postgres]'`") from error
    return {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
