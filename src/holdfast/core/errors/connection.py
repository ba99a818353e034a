"""Errors about the `conn` that the caller passed. Nothing was stored."""

from __future__ import annotations

from holdfast.core.errors.root import HoldfastError


class UnsupportedConnection(HoldfastError, TypeError):
    """Holdfast cannot write through a `conn` of this type. Nothing was stored."""

    def __init__(self, given: str, hint: str = "") -> None:
        super().__init__(given, hint)
        self.given, self.hint = given, hint

    def __str__(self) -> str:
        hint = self.hint or (
            "pass a sqlite3, psycopg or asyncpg connection, an SQLAlchemy Session, AsyncSession or "
            "Connection, a Django alias, or conn=None to commit separately"
        )
        return f"cannot write through a connection of type {self.given}; {hint}"


class WrongDatabase(UnsupportedConnection):
    """The `conn` is connected to another database than the store. Nothing was written.

    `given` is the database of the connection; `store` is the store without its password.
    """

    def __init__(self, given: str, store: str) -> None:
        super().__init__(given, store)
        self.store = store

    def __str__(self) -> str:
        return (
            f"the connection uses database {self.given}, but the store is {self.store}: no worker would see a message "
            "stored there, so nothing was written; pass a connection to the store's database, or pass the DSN of the "
            "database with your data to Holdfast(...)"
        )


class NoTransaction(HoldfastError):
    """The `conn` is in autocommit mode and has no open transaction. Nothing was stored."""

    def __init__(self, given: str, hint: str = "") -> None:
        super().__init__(given, hint)
        self.given, self.hint = given, hint
        self.call = ""
        """The call of the public API, if it is known."""

    def __str__(self) -> str:
        hint = self.hint or "open a transaction around your own writes and this call"
        if self.call == "ctx.complete":
            return (
                f"the {self.given} is in autocommit mode without a transaction, so the outcome of this delivery and your "
                f"writes cannot commit together; {hint}"
            )
        return (
            f"the {self.given} is in autocommit mode without a transaction, so the message and your writes cannot "
            f"commit together; {hint}, or pass conn=None to commit the message separately"
        )
