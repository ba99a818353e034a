"""Keeps Django's test databases usable: emptied between tests with Django's tables, and without connections when Django drops them."""

import re

from django.db import connections, transaction
from django.db.backends.base.base import NO_DB_ALIAS

from holdfast.django.app import DjangoHoldfast, project_app
from holdfast.django.connection_store import dialect_of
from holdfast.django.database import uses_test_database
from holdfast.stores.migration import migrations

_TABLE = re.compile(r"^create table \{hf\}(\w+)", re.MULTILINE)
_EXISTING = {
    "postgresql": "select tablename from pg_tables where schemaname = %s",
    "sqlite": "select substr(name, length(%s) + 2) from sqlite_master where type = 'table'",
}


def table_names(dialect: str) -> list[str]:
    """The tables of Holdfast that hold rows of the project, those that others reference last."""
    found = [name for one in migrations(f"holdfast.stores.{dialect}.migrations") for name in _TABLE.findall(one.text)]
    return sorted(found, key=lambda name: name == "consumer")


def empty_tables(app: DjangoHoldfast) -> None:
    """Deletes everything that Holdfast stores, through Django's own connection. For a test database only."""
    alias = app.configuration.database
    app.release()
    database = connections[alias]
    dialect = dialect_of(database.vendor, app.schema)
    with transaction.atomic(using=alias), database.cursor() as cursor:
        cursor.execute(_EXISTING[database.vendor], [app.schema])
        existing = {name for (name,) in cursor.fetchall()}
        for name in table_names(dialect.name):
            if name in existing:
                cursor.execute(f"delete from {dialect.prefix}{name}")  # noqa: S608


def release_before_drop(connection: object, **_: object) -> None:
    """Closes the app's connections when Django opens the one that drops or copies a test database.

    PostgreSQL does neither with a database that has other connections.
    """
    if getattr(connection, "alias", None) != NO_DB_ALIAS or not project_app.cache_info().currsize:
        return
    app = project_app()
    if uses_test_database(app.configuration.database):
        app.release()
