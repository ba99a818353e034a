"""The shop's tables, in the same database as Holdfast's, so that one transaction can write both."""

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.sqlite.dialect import SqliteDialect

if TYPE_CHECKING:
    from psycopg import Connection

# No unique constraint on order_id, so that an effect applied twice is detected.
_TABLES = (
    "create table {shop}orders (id {identity}, email text not null, sku text not null, cents integer not null)",
    "create table {shop}charges (id {identity}, order_id integer not null, cents integer not null)",
    "create table {shop}stock_moves (id {identity}, order_id integer not null, shelf text not null)",
)


class Database(ABC):
    """Access to the shop's tables. In SQL, `{shop}` and `{hf}` are the table prefixes of the shop and of Holdfast."""

    _identity: str
    _placeholder: str
    _array_length: str

    def __init__(self, shop: str, holdfast: str) -> None:
        self._names = {
            "shop": shop,
            "hf": holdfast,
            "identity": self._identity,
            "array_length": self._array_length,
        }

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Any]:
        """A connection in a write transaction; commits at the end, rolls back on an exception."""

    @abstractmethod
    def drop(self) -> None:
        """Removes everything the demo created in the database."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connections."""

    def create_tables(self) -> None:
        """Creates the shop's tables; Holdfast creates its own."""
        with self.transaction() as conn:
            for table in _TABLES:
                conn.execute(table.format(**self._names))

    def insert(self, conn: Any, table: str, **values: object) -> int:
        """Inserts one row in the caller's transaction; returns its id."""
        columns, marks = ", ".join(values), ", ".join(self._placeholder for _ in values)
        text = f"insert into {{shop}}{table} ({columns}) values ({marks}) returning id"  # noqa: S608
        return int(conn.execute(text.format(**self._names), tuple(values.values())).fetchone()[0])

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of a select; `{placeholder}` marks each value."""
        with self._reading() as conn:
            return list(
                conn.execute(text.format(placeholder=self._placeholder, **self._names), tuple(values)).fetchall()
            )

    @abstractmethod
    def _reading(self) -> AbstractContextManager[Any]: ...


class SqliteDatabase(Database):
    """A SQLite file. Transactions use BEGIN IMMEDIATE, so that a read followed by a write cannot fail with BUSY."""

    _identity = "integer primary key"
    _placeholder = "?"
    _array_length = "json_array_length"

    def __init__(self, path: Path, schema: str) -> None:
        super().__init__("", SqliteDialect(schema).prefix)
        self._path = path

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._reading() as conn:
            conn.execute("begin immediate")
            with conn:
                yield conn

    def _reading(self) -> AbstractContextManager[sqlite3.Connection]:
        return closing(sqlite3.connect(self._path, timeout=10, isolation_level=None))

    def drop(self) -> None:
        """Nothing to do: the file is removed with its folder."""

    def close(self) -> None:
        """Nothing to do: every transaction uses a separate connection."""


class PostgresDatabase(Database):
    """One schema for the shop's and Holdfast's tables, created for this run."""

    _identity = "bigint generated always as identity primary key"
    _placeholder = "%s"
    _array_length = "jsonb_array_length"

    def __init__(self, dsn: str, schema: str) -> None:
        self._schema = PostgresDialect(schema).prefix
        super().__init__(self._schema, self._schema)
        self._dsn = dsn

    @contextmanager
    def transaction(self) -> Iterator["Connection[Any]"]:
        import psycopg

        with psycopg.connect(self._dsn, connect_timeout=10) as conn:
            yield conn

    _reading = transaction

    def drop(self) -> None:
        with self.transaction() as conn:
            conn.execute(f"drop schema if exists {self._schema.rstrip('.')} cascade".encode())

    def close(self) -> None:
        """Nothing to do: every transaction uses a separate connection."""


def open_database(dsn: str, schema: str) -> Database:
    """The database of a store's DSN. Does not connect yet."""
    scheme, _, path = dsn.partition(":///")
    return SqliteDatabase(Path(path), schema) if scheme == "sqlite" else PostgresDatabase(dsn, schema)
