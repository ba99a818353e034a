"""Calls functions after a caller's commit, where the connection has hooks: SQLAlchemy sessions and Django."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.stores.connections.connection import AsyncConnection, Connection
from holdfast.stores.connections.django import Django

if TYPE_CHECKING:
    from sqlalchemy.orm import Session, SessionTransaction

_WAITING = "holdfast.after_commit"


A = TypeVar("A", bound=Connection | AsyncConnection)


@dataclass(frozen=True, slots=True)
class BoundConnection(Generic[A]):
    """A caller's connection with its adapter, in a transaction."""

    conn: Any
    adapter: A

    def after_commit(self, call: Callable[[], None]) -> bool:
        """`after_commit` for this connection."""
        return after_commit(self.conn, self.adapter, call)


def after_commit(conn: Any, adapter: Connection | AsyncConnection, call: Callable[[], None]) -> bool:
    """Calls `call` once, after the transaction that is open on `conn` has committed, and never if it rolls back.

    The commit of a savepoint does not count: a call registered inside it waits for the outer commit, and a rollback of
    either removes it. False if this kind of connection has no commit hook; then nothing is called.
    """
    if isinstance(adapter, Django):
        return _django(adapter.alias, call)
    session = sync_session(conn)
    if session is None:
        return False
    waiting = _waiting(session)
    transaction = innermost(session)
    if transaction is None:
        return False
    if (transaction, call) not in waiting:
        waiting.append((transaction, call))
    return True


def sync_session(conn: Any) -> "Session | None":
    """The plain SQLAlchemy session of a caller's connection; None if it is not a session."""
    if not hasattr(conn, "get_bind"):
        return None
    # A scoped session is a registry of sessions; an async one wraps a plain one.
    conn = conn.registry() if hasattr(conn, "registry") else conn
    session: Session = getattr(conn, "sync_session", conn)
    return session


def innermost(session: "Session") -> "SessionTransaction | None":
    """The current savepoint of the session, otherwise its transaction."""
    return session.get_nested_transaction() or session.get_transaction()


def undone_by(rolled_back: "SessionTransaction", transaction: "SessionTransaction | None") -> bool:
    """Whether the rollback of `rolled_back` also undid `transaction`."""
    while transaction is not None and transaction is not rolled_back:
        transaction = transaction.parent
    return transaction is rolled_back


def _django(alias: str, call: Callable[[], None]) -> bool:
    from django.db import connections, transaction

    if not connections[alias].in_atomic_block:
        # Autocommit was turned off manually; Django does not see the commit then.
        return False
    transaction.on_commit(call, using=alias)
    return True


def _waiting(session: "Session") -> "list[tuple[SessionTransaction, Callable[[], None]]]":
    found: list[tuple[SessionTransaction, Callable[[], None]]] | None = session.info.get(_WAITING)
    if found is None:
        found = session.info[_WAITING] = []
        from sqlalchemy import event

        # Once per session, and never removed: SQLAlchemy cannot remove a listener while it calls it.
        event.listen(session, "after_commit", _committed)
        event.listen(session, "after_soft_rollback", _rolled_back)
        event.listen(session, "after_transaction_end", _ended)
    return found


def _committed(session: "Session") -> None:
    if not session.in_nested_transaction():
        for _, call in tuple(_waiting(session)):
            call()


def _rolled_back(session: "Session", transaction: "SessionTransaction") -> None:
    waiting = _waiting(session)
    waiting[:] = [(asked_in, call) for asked_in, call in waiting if not undone_by(transaction, asked_in)]


def _ended(session: "Session", transaction: "SessionTransaction") -> None:
    # A session that is closed without a commit rolls back without an event.
    if transaction.parent is None:
        _waiting(session).clear()
