"""PostgreSQL sessions for the statements of tests, kept between tests: to open one takes longer than most statements."""

import os
from typing import Any

import psycopg

NAME = "test statements"  # the application's name, by which `tables.empty` spares these sessions
_MOST = 4

_free: dict[tuple[int, str], psycopg.Connection] = {}


def execute(dsn: str, text: str, values: tuple[object, ...] | None = None) -> list[tuple[Any, ...]]:
    """Runs one statement in autocommit and returns the rows, if it has any."""
    kept = _free.pop((os.getpid(), dsn), None)
    if kept is not None:
        try:
            return _execute(kept, dsn, text, values)
        except psycopg.OperationalError:
            if not kept.broken:
                raise
    return _execute(_connect(dsn), dsn, text, values)


def _connect(dsn: str) -> psycopg.Connection:
    # The tests change tables, so plans are not kept.
    return psycopg.connect(dsn, autocommit=True, application_name=NAME, prepare_threshold=None)


def _execute(
    connection: psycopg.Connection, dsn: str, text: str, values: tuple[object, ...] | None
) -> list[tuple[Any, ...]]:
    try:
        cursor = connection.execute(text.encode(), values)
        return cursor.fetchall() if cursor.description else []
    finally:
        _keep(connection, dsn)


def _keep(connection: psycopg.Connection, dsn: str) -> None:
    place = os.getpid(), dsn
    if connection.closed or place in _free:
        connection.close()
        return
    _free[place] = connection
    if len(_free) > _MOST:
        oldest = next(iter(_free))
        other = _free.pop(oldest)
        if oldest[0] == place[0]:
            other.close()
