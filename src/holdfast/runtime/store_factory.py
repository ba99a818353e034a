"""Opens the store of a DSN, and creates its tables inside a caller's transaction."""

import os
from datetime import timedelta
from pathlib import Path
from typing import TypeGuard
from urllib.parse import unquote, urlsplit

from holdfast.core.drive import drive, drive_async
from holdfast.core.encryption import Cipher
from holdfast.core.errors import ConfigurationError
from holdfast.core.redaction.mask import mask
from holdfast.stores.connections.connection import AsyncConnection, Connection
from holdfast.stores.encryption.encryption import Encryption
from holdfast.stores.errors import translating
from holdfast.stores.messages.publish import LOCK_REGISTRY
from holdfast.stores.operation import Rows
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore, migration_steps


def open_store(
    dsn: str,
    schema: str = "holdfast",
    *,
    role: str = "holdfast",
    pool_size: int = 10,
    patience: timedelta = timedelta(seconds=60),
) -> Store:
    """The store a DSN names; nothing is connected yet.

    `role` is the application name of its connections, `patience` the time that the server has to answer a statement.
    """
    if (file := check_dsn(dsn)) is not None:
        return SqliteStore(file, schema)
    try:
        from holdfast.stores.postgres.store import PostgresStore
    except ImportError as error:
        raise ConfigurationError("PostgreSQL needs a driver; run `pip install 'holdfast[postgres]'`") from error
    return PostgresStore(dsn, schema, application_name=role, pool_size=pool_size, patience=patience)


def use_cipher(store: Store, cipher: Cipher | None) -> Store:
    """The store, which from now on encrypts what it writes and decrypts what it reads."""
    if cipher is not None:
        store.dialect.encryption = Encryption(cipher)
    return store


def check_dsn(dsn: object) -> Path | None:
    """Return the file of a SQLite DSN, None for PostgreSQL; raise `ConfigurationError` for anything else."""
    if not isinstance(dsn, str):
        raise ConfigurationError(
            f"the DSN is {mask(repr(dsn))}; give text: 'sqlite:///shop.db' or 'postgresql://user@host/database'"
        )
    if not dsn.strip():
        raise ConfigurationError(
            "the DSN is empty; give 'sqlite:///shop.db' or 'postgresql://user@host/database', or leave it out to use HOLDFAST_DSN"
        )
    scheme = dsn.partition(":")[0]
    if scheme == "sqlite":
        return _sqlite_path(dsn)
    if scheme in ("postgresql", "postgres"):
        return None
    database, _, driver = scheme.partition("+")
    hint = "use sqlite:///path or postgresql://…"
    if driver and database in ("sqlite", "postgresql", "postgres"):
        hint = f"leave '+{driver}' out: {database}://…"
    elif dsn.startswith(("postgres", "sqlite")) and "//" in dsn:
        hint = "a colon or a slash is missing: use sqlite:///path or postgresql://…"
    elif "=" in dsn:
        scheme, hint = "host=… dbname=…" if "dbname" in dsn else scheme, "write it as postgresql://user@host/database"
    elif "://" not in dsn and "@" not in dsn:
        hint = f"for a file write sqlite:///{mask(dsn)}"
    raise ConfigurationError(
        f"a DSN that begins with {mask(repr(scheme))} does not name a store that Holdfast supports; {hint}"
    )


def is_embedded(store: Store) -> TypeGuard[SqliteStore]:
    """Whether the app creates the tables: a SQLite file has no operator."""
    return isinstance(store, SqliteStore)


def migrate_blocking(store: SqliteStore, conn: Connection) -> None:
    """Creates the tables inside the caller's transaction: a second connection would fail with "database is locked"."""
    with translating(LOCK_REGISTRY):
        drive(migration_steps(store.dialect), lambda text: conn.run(text, {})[1])


async def migrate_async(store: SqliteStore, conn: AsyncConnection) -> None:
    """`migrate_blocking`, awaiting."""

    async def run(text: str) -> Rows:
        return (await conn.run(text, {}))[1]

    with translating(LOCK_REGISTRY):
        await drive_async(migration_steps(store.dialect), run)


def _sqlite_path(dsn: str) -> Path:
    split = urlsplit(dsn)
    path = unquote(split.path)
    if split.netloc or not dsn.startswith("sqlite:///") or path == "/":
        raise ConfigurationError(
            f"{mask(repr(dsn))} does not name a file; use sqlite:///relative.db, or sqlite:////absolute/path.db with four slashes"
        )
    if split.query:
        raise ConfigurationError(
            f"{mask(repr(dsn))} has options after '?', which a SQLite DSN cannot have; remove them"
        )
    if path == "/:memory:":
        raise ConfigurationError(
            "an in-memory database is lost when its connection closes; use a file, for instance in /tmp"
        )
    return Path(path[1:])


def generation_from_environment() -> int:
    """The generation in `HOLDFAST_GENERATION`; 0 by default."""
    given = os.environ.get("HOLDFAST_GENERATION", "0")
    if not given.isdecimal():
        raise ConfigurationError(f"HOLDFAST_GENERATION is {given!r}; give a whole number, at least 0")
    return int(given)
