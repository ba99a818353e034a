"""Joining a caller's transaction: what `conn=` must be before anything is written through it.

The connection is of a known kind and of the right colour, a transaction is open on it, and it leads to the store's own
database: a message written anywhere else would never be delivered.
"""

from typing import Any

from holdfast.core.errors import UnsupportedConnection
from holdfast.stores.connections.connection import AsyncConnection, Connection, adapt_connection
from holdfast.stores.protocol import Store


async def bind(store: Store, conn: Any, call: str) -> AsyncConnection:
    """The caller's awaiting connection, in a transaction of the store's database.

    `call` is what the user called, for instance `hf.publish`; the `TypeError` for a blocking connection names it.
    """
    adapter = _adapter(store, conn)
    if not adapter.awaits:
        owner, _, method = call.rpartition(".")
        raise TypeError(f"{_kind(conn)} blocks; call {owner}.sync.{method}(...) from a plain function")
    await adapter.check()
    await store.verify(adapter)
    await adapter.begin()
    return adapter


def bind_sync(store: Store, conn: Any, call: str) -> Connection:
    """`bind`, blocking."""
    adapter = _adapter(store, conn)
    if adapter.awaits:
        raise TypeError(f"{_kind(conn)} is awaited; use `await {call}(...)`")
    adapter.check()
    store.verify_sync(adapter)
    adapter.begin()
    return adapter


def _adapter(store: Store, conn: Any) -> Connection | AsyncConnection:
    adapter = adapt_connection(conn)
    if adapter.database != store.dialect.name:
        raise UnsupportedConnection(
            _kind(conn),
            f"it speaks {adapter.database}, the store is {store.name}; pass a connection to the store's database",
        )
    return adapter


def _kind(conn: object) -> str:
    return f"{type(conn).__module__.partition('.')[0]} {type(conn).__name__}"
