"""What a database really does for a statement.

On PostgreSQL operations run through psycopg as they do in production, prepared by the driver, and `explain` asks the
server for the plan of that very prepared statement: a plan that changed after some executions is seen. SQLite only
returns its plan, without counting.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import psycopg

from holdfast.stores.connections.connection import Psycopg, Sqlite3, run_on
from holdfast.stores.dialect import Answer, LockedCall, Parameters, Stream, Style
from holdfast.stores.operation import Operation, Query
from holdfast.stores.postgres.store import HOT_SESSION, PostgresStore
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.concurrency.query_hook import before_each_query

T = TypeVar("T")

_READS = {"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Index Scan", "Bitmap Heap Scan", "Tid Scan"}
_CUSTOM_PLANS = 5
"""PostgreSQL plans the first executions of a prepared statement for their values, and then decides."""


@dataclass(frozen=True)
class Plan:
    """An executed plan, its nodes in the order in which they are shown."""

    nodes: tuple[dict[str, Any], ...]

    @property
    def buffers(self) -> int:
        """Pages looked at by all of it, cached or not."""
        top = self.nodes[0]
        return int(top["Shared Hit Blocks"]) + int(top["Shared Read Blocks"])

    @property
    def milliseconds(self) -> float:
        """For people to read; no test may depend on it."""
        return float(self.nodes[0]["Actual Total Time"])

    def scans(self, table: str) -> set[str]:
        """How a table is read: the indexes by name, without one `Seq Scan`."""
        return {name for name, _ in self._scans(table)} - {"Bitmap Heap Scan"}

    def rows_read(self, table: str) -> int:
        """How many rows of a table the scans returned; a bitmap of an index also counts entries of rows that are gone."""
        scans = [node for _, node in self._scans(table) if node["Node Type"] != "Bitmap Index Scan"]
        return round(sum(node["Actual Rows"] * node["Actual Loops"] for node in scans))

    def rows_removed(self, table: str) -> int:
        """How many rows of a table were read and thrown away by a filter."""
        return round(
            sum(node.get("Rows Removed by Filter", 0) * node["Actual Loops"] for _, node in self._scans(table))
        )

    def has(self, kind: str) -> bool:
        return any(node["Node Type"] == kind for node in self.nodes)

    def _scans(self, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for node in self.nodes:
            index = str(node.get("Index Name", ""))
            if node["Node Type"] in _READS and (node.get("Relation Name") == table or index.startswith(f"{table}_")):
                yield index or node["Node Type"], node


class Session:
    """One connection, on which every statement is prepared at its first use; it remembers the last query of a name."""

    def __init__(self, store: PostgresStore, connection: psycopg.Connection) -> None:
        self.connection = connection
        self._dialect = store.dialect
        self._queries: dict[str, Query] = {}
        self._prepared: set[str] = set()

    @property
    def names(self) -> list[str]:
        """The statements that were run."""
        return list(self._queries)

    def run(self, operation: Operation[T]) -> T:
        """Runs an operation in a separate transaction."""
        with self.connection.transaction():
            return self.continue_with(operation)

    def continue_with(self, operation: Operation[T]) -> T:
        """Runs an operation in the transaction that is open."""
        recorded = before_each_query(operation, self._record)
        return run_on(recorded, self._dialect, Psycopg(self.connection))

    def try_out(self, operation: Operation[T]) -> T:
        """Runs an operation and undoes it."""
        with self.undone():
            return self.continue_with(operation)

    def plan_mode(self, mode: str) -> None:
        """`auto` lets the server choose; `force_generic_plan` shows the worst that a prepared statement may come to."""
        self.connection.execute(f"set plan_cache_mode = {mode}".encode())

    def explain(self, name: str) -> Plan:
        """Executes the last query of this name once more, with the statement that is prepared for it, and undoes it."""
        text, values = next(self._dialect.expand(self._queries[name], Style.NUMERIC))
        if isinstance(values, LockedCall):
            return self._explain_locked(text, values)
        assert not isinstance(values, Stream)
        prepared = self.connection.execute(
            "select name from pg_prepared_statements where statement = %s", (text,)
        ).fetchone()
        assert prepared is not None, f"{name} is not prepared"
        places = ", ".join(["%s"] * len(values))
        call = f"explain (analyze, buffers, format json) execute {prepared[0]}" + (f" ({places})" if places else "")
        with self.undone(), psycopg.ClientCursor(self.connection) as cursor:
            cursor.execute(call.encode(), list(values) or None)
            ((explained,),) = cursor.fetchall()
        return Plan(tuple(_flatten(explained[0]["Plan"])))

    def _explain_locked(self, text: str, call: LockedCall) -> Plan:
        """Prepares a statement that runs under locks as a worker does, and executes it often enough for a generic plan."""
        if call.name not in self._prepared:
            self.connection.execute(f"prepare {call.name} ({', '.join(call.types)}) as {text}".encode())
            self._prepared.add(call.name)
        execute = f"execute {call.name}({', '.join(call.arguments)})"
        for _ in range(_CUSTOM_PLANS + 1):
            with self.undone():
                self.connection.execute(execute.encode(), prepare=False)
        with self.undone():
            cursor = self.connection.execute(f"explain (analyze, buffers, format json) {execute}".encode())
            ((explained,),) = cursor.fetchall()
        return Plan(tuple(_flatten(explained[0]["Plan"])))

    def _record(self, query: Query) -> None:
        self._queries[query.name] = query

    @contextmanager
    def undone(self) -> Iterator[None]:
        """A transaction that is rolled back."""
        # Behind psycopg's back: when it sees a ROLLBACK it gives up everything it has prepared.
        self.connection.pgconn.exec_(b"begin")
        try:
            yield
        finally:
            self.connection.pgconn.exec_(b"rollback")


@contextmanager
def session(store: PostgresStore, *, hot: bool = False) -> Iterator[Session]:
    """A connection set up as the store sets up its own, prepared statements from the first use on."""
    with store._connect() as connection:
        if hot:
            connection.execute(HOT_SESSION)
        connection.prepare_threshold = 0
        connection.prepared_max = None
        yield Session(store, connection)


class Explained(Sqlite3):
    """A connection to SQLite that notes how each statement would be run."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        super().__init__(connection)
        self.connection = connection
        self.plan: list[str] = []

    def run(self, text: str, values: Parameters) -> Answer:
        assert not isinstance(values, Stream | LockedCall)
        if text.strip():
            self.plan += [row[3] for row in self.connection.execute(f"explain query plan {text}", values)]
        return super().run(text, values)


def sqlite_plan(store: SqliteStore, operation: Operation[T]) -> tuple[T, list[str]]:
    """Runs an operation on a separate connection, commits it, and returns the plan of its statements, line by line."""
    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        explained = Explained(connection)
        connection.execute("begin immediate")
        result = run_on(operation, store.dialect, explained)
        connection.execute("commit")
        return result, explained.plan


def sqlite_steps(store: SqliteStore, operation: Operation[object]) -> int:
    """How many steps of its virtual machine SQLite takes for an operation that reads, to the nearest thousand."""
    taken = 0

    def count() -> int:
        nonlocal taken
        taken += 1000
        return 0

    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.set_progress_handler(count, 1000)
        run_on(operation, store.dialect, Sqlite3(connection))
    return taken


def _flatten(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _flatten(child)
