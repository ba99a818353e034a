"""The adapter for Django connections. Statements run through Django, so that it logs them."""

from typing import Any, Literal

from holdfast.core.errors import NoTransaction, UnsupportedConnection
from holdfast.stores.connections.sqlite_autobegin import BEGIN, must_begin
from holdfast.stores.dialect import Answer, Parameters, Style


class Django:
    """A Django database connection, such as `django.db.connections[alias]`."""

    awaits: Literal[False] = False
    style = Style.PYFORMAT

    def __init__(self, conn: Any) -> None:
        self._conn = conn
        database = {"postgresql": "postgres", "sqlite": "sqlite"}.get(conn.vendor)
        if database is None:
            raise UnsupportedConnection(f"Django's {conn.vendor} backend", "use PostgreSQL or SQLite")
        self.database = database
        self.alias: str = conn.alias
        self._begins = False

    @property
    def physical(self) -> object:
        return self._conn.connection

    def check(self) -> None:
        if not self._conn.in_atomic_block and self._conn.get_autocommit():
            raise NoTransaction("Django connection", "use `with transaction.atomic():`")
        self._begins = self.database == "sqlite" and must_begin(self._conn.connection)

    def begin(self) -> None:
        if self._begins:
            self.run(BEGIN, {})

    def run(self, text: str, values: Parameters) -> Answer:
        with self._conn.cursor() as cursor:
            cursor.execute(text, values)
            if cursor.description is None:
                return (), ()
            return [column[0] for column in cursor.description], [tuple(row) for row in cursor.fetchall()]


def django_connection(alias: str) -> Any:
    """The connection behind a Django alias."""
    if "://" in alias:  # not shown, because it may contain a password
        raise UnsupportedConnection("str", "pass an open connection or session instead of its address, or conn=None")
    try:
        from django.core.exceptions import ImproperlyConfigured
        from django.db import connections
        from django.utils.connection import ConnectionDoesNotExist
    except ImportError as error:
        raise UnsupportedConnection(
            f"str {alias!r}", "a Django alias needs Django; run `pip install 'holdfast[django]'`"
        ) from error
    try:
        return connections[alias]
    except ConnectionDoesNotExist as error:
        raise UnsupportedConnection(
            f"str {alias!r}", f"text names a Django database; the known ones are: {', '.join(connections) or 'none'}"
        ) from error
    except ImproperlyConfigured as error:
        raise UnsupportedConnection(
            f"str {alias!r}", "text names a Django database, and Django's settings are not configured here"
        ) from error
