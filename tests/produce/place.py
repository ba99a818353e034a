"""Where the tests publish: a database with a table of the caller and Holdfast's tables next to it."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from tests.servers.sessions import execute
from tests.support.django_project import configure_django, set_database

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
    configure_django()
    set_database(place.alias, place.dsn)
