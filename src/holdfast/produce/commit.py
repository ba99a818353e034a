"""Seeing a caller's commit, where that is possible: SQLAlchemy sessions and Django connections have hooks."""

from collections.abc import Callable
from typing import Any

from holdfast.stores.connection import Django, recognise


def after_commit(conn: Any, call: Callable[[], None]) -> bool:
    """Calls `call` once, after the transaction now open on `conn` has committed and never if it rolls back.

    False when this kind of connection cannot tell; then nothing will be called.
    """
    adapter = recognise(conn)
    if isinstance(adapter, Django):
        from django.db import transaction

        transaction.on_commit(call, using=adapter.alias)
        return True
    session = getattr(conn, "sync_session", conn)
    if type(session).__module__.partition(".")[0] != "sqlalchemy" and not hasattr(session, "get_transaction"):
        return False
    if not hasattr(session, "get_bind"):
        return False
    session = session() if hasattr(session, "registry") else session
    from sqlalchemy import event

    def committed(_: Any) -> None:
        forget()
        call()

    def rolled_back(_: Any, __: Any) -> None:
        forget()

    def forget() -> None:
        event.remove(session, "after_commit", committed)
        event.remove(session, "after_soft_rollback", rolled_back)

    event.listen(session, "after_commit", committed)
    event.listen(session, "after_soft_rollback", rolled_back)
    return True
