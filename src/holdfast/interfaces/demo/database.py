"""The shop's tables, in the same database as Holdfast's, so that one transaction can write both."""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.stores.postgres.dialect import PostgresDialect
from holdfast.stores.sqlite.dialect import SqliteDialect

# No unique constraint on order_id, so that an effect applied twice is detected.
_TABLES = (
    "create table {shop}orders (id {identity}, email text not null, sku text not null, cents integer not null)",
    "create table {shop}charges (id {identity}, order_id integer not null, cents integer not null)",
    "create table {shop}stock_moves (id {identity}, order_id integer not null, shelf text not null)",
)


@dataclass(frozen=True, slots=True)
class Database:
    """Access to the shop's tables. In SQL, `{shop}` and `{hf}` are the table prefixes of the shop and of Holdfast.

    `transaction` returns a connection in a write transaction, which commits at the end or rolls back on an exception;
    `reading` returns a connection for a select. Each uses a separate connection.
    """

    names: dict[str, str]
    transaction: Callable[[], AbstractContextManager[Any]]
    reading: Callable[[], AbstractContextManager[Any]]

    def create_tables(self) -> None:
        """Creates the shop's tables; Holdfast creates its own."""
        with self.transaction() as conn:
            for table in _TABLES:
                conn.execute(table.format(**self.names))

    def insert(self, conn: Any, table: str, **values: object) -> int:
        """Inserts one row in the caller's transaction; returns its id."""
        columns, marks = ", ".join(values), ", ".join(self.names["placeholder"] for _ in values)
        text = f"insert into {{shop}}{table} ({columns}) values ({marks}) returning id"  # noqa: S608
        return int(conn.execute(text.format(**self.names), tuple(values.values())).fetchone()[0])

    def rows(self, text: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Rows of a select; `{placeholder}` marks each value."""
        with self.reading() as conn:
            return list(conn.execute(text.format(**self.names), tuple(values)).fetchall())

    def drop(self) -> None:
        """Removes the PostgreSQL schema that the demo created. A SQLite file is removed with its folder."""
        if schema := self.names.get("schema"):
            with self.transaction() as conn:
                conn.execute(f"drop schema if exists {schema} cascade".encode())


def open_database(dsn: str, schema: str) -> Database:
    """The database of a store's DSN. Does not connect yet."""
    scheme, _, path = dsn.partition(":///")
    return _sqlite(path, schema) if scheme == "sqlite" else _postgres(dsn, schema)


def _sqlite(path: str, schema: str) -> Database:
    def reading() -> AbstractContextManager[sqlite3.Connection]:
        return closing(sqlite3.connect(path, timeout=10, isolation_level=None))

    @contextmanager
    def transaction() -> Iterator[sqlite3.Connection]:
        with reading() as conn:
            # Immediate, so that a read followed by a write cannot fail with BUSY.
            conn.execute("begin immediate")
            with conn:
                yield conn

    names = {"shop": "", "hf": SqliteDialect(schema).prefix, "identity": "integer primary key"}
    return Database({**names, "placeholder": "?", "array_length": "json_array_length"}, transaction, reading)


def _postgres(dsn: str, schema: str) -> Database:
    """One schema for the shop's and Holdfast's tables, created for this run."""

    def transaction() -> AbstractContextManager[Any]:
        import psycopg

        return psycopg.connect(dsn, connect_timeout=10)

    prefix = PostgresDialect(schema).prefix
    names = {"shop": prefix, "hf": prefix, "schema": prefix.rstrip(".")}
    names |= {"identity": "bigint generated always as identity primary key", "placeholder": "%s"}
    return Database({**names, "array_length": "jsonb_array_length"}, transaction, transaction)
