"""Where the tests publish: a database with a table of the caller and Holdfast's tables next to it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.servers.sessions import execute

_TABLES = ("delivery", "message", "subscription", "consumer")


class Place(Protocol):
    """A database. `dsn` is for `Holdfast`, `url` for everybody else."""

    database: str
    alias: str
    path: Path

    @property
    def dsn(self) -> str: ...

    def url(self, driver: str = "") -> str: ...

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """What another connection sees, committed; `{hf}` is the tables' prefix."""
        ...

    def clear(self) -> None: ...


class SqlitePlace:
    """A new file, without Holdfast's tables: the first publish makes them."""

    database = "sqlite"
    alias = "holdfast_sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows("create table orders (id integer primary key)")

    @property
    def dsn(self) -> str:
        return f"sqlite:///{self.path}"

    def url(self, driver: str = "") -> str:
        return f"sqlite{driver}:///{self.path}"

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            try:
                return connection.execute(text.replace("{hf}", "holdfast_")).fetchall()
            except sqlite3.OperationalError as error:
                # The transaction that made the tables was rolled back, or has not committed.
                if "no such table" in str(error):
                    return []
                raise

    def clear(self) -> None: ...


class PostgresPlace:
    """A migrated database, shared by the tests and emptied after each."""

    database = "postgres"
    alias = "holdfast_postgres"
    path = Path("/nowhere")

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def url(self, driver: str = "") -> str:
        return self.dsn.replace("postgresql://", f"postgresql{driver}://", 1)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        return execute(self.dsn, text.replace("{hf}", "holdfast."))

    def clear(self) -> None:
        self.rows("; ".join(f"delete from {table}" for table in ("orders", *(f"{{hf}}{name}" for name in _TABLES))))


def use_django(place: Place) -> None:
    """Makes the place known to Django under its alias, with Django's defaults."""
    import django
    from django.conf import settings
    from django.db import connections

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    if place.database == "sqlite":
        options = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(place.path)}
    else:
        split = urlsplit(place.dsn)
        options = {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": split.path[1:],
            "USER": split.username or "",
            "HOST": split.hostname or "",
            "PORT": str(split.port or ""),
        }
    configured = connections.configure_settings({"default": {}, place.alias: options})
    connections.settings[place.alias] = configured[place.alias]
    if hasattr(connections._connections, place.alias):
        del connections[place.alias]
