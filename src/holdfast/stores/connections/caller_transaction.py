"""Checks of a caller's connection before the first write: driver, transaction and database.

The connection has a supported type and matches the call (async or blocking), a transaction is open, and it uses the
store's database: a message in another database would never be delivered.
"""

from typing import Any

from holdfast.core.errors import NoTransaction, UnsupportedConnection
from holdfast.stores.connections.connection import AsyncConnection, Connection, adapt_connection
from holdfast.stores.protocol import Store

_OPEN = (
    "pass the open connection or session with which the handler writes its effect, in Django the alias (conn='default'); if "
    "the handler has no effect in the database, return without this call"
)


async def bind(store: Store, conn: Any, call: str) -> AsyncConnection:
    """The caller's async connection, with an open transaction in the store's database.

    `call` is the public call, for instance `hf.publish`, for the `TypeError` about a blocking connection.
    """
    adapter = _adapter(store, conn)
    if not adapter.awaits:
        owner, _, method = call.rpartition(".")
        raise TypeError(f"{_kind(conn)} is blocking; call {owner}.sync.{method}(...) from a plain function")
    try:
        await adapter.check()
    except NoTransaction as error:
        error.call = call
        raise
    await store.verify(adapter)
    await adapter.begin()
    return adapter


def bind_sync(store: Store, conn: Any, call: str) -> Connection:
    """`bind`, blocking."""
    adapter = _adapter(store, conn)
    if adapter.awaits:
        raise TypeError(f"{_kind(conn)} is async; use `await {call}(...)`")
    try:
        adapter.check()
    except NoTransaction as error:
        error.call = call
        raise
    store.verify_sync(adapter)
    adapter.begin()
    return adapter


def _adapter(store: Store, conn: Any) -> Connection | AsyncConnection:
    if conn is None:  # of `ctx.complete`, which cannot commit separately
        raise UnsupportedConnection("NoneType", _OPEN)
    adapter = adapt_connection(conn)
    if adapter.database != store.dialect.name:
        raise UnsupportedConnection(
            _kind(conn),
            f"it is a {adapter.database} connection, but the store is {store.name}; pass a connection to the store's "
            "database",
        )
    return adapter


def _kind(conn: object) -> str:
    return f"{type(conn).__module__.partition('.')[0]} {type(conn).__name__}"
