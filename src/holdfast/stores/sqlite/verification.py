"""Checks that the main database of a caller's connection is the store's file."""

import os
from pathlib import Path

from holdfast.core.errors import WrongDatabase
from holdfast.stores.dialect import Answer
from holdfast.stores.sqlite.dialect import SqliteDialect

_DELETED = "a file that was deleted or replaced while the connection was open"


class OwnFile:
    """The store's file, with the names under which callers' connections have opened it."""

    def __init__(self, path: Path, store: str, dialect: SqliteDialect) -> None:
        self._path, self._store = path, store
        self._known: set[str] = set()
        ((self.query,),) = (step.statements for step in dialect.statements.render("database_identity", (), None))

    def check(self, opened: Answer) -> None:
        """Raises `WrongDatabase` unless the main file in the result of `query` is the store's file.

        It runs at every publish, because sqlite3 connections cannot be remembered by weak references. To keep it
        cheap, each file name is checked only once.
        """
        name = str(opened[1][0][2])
        if name not in self._known:
            _check(name, self._path, self._store)
            self._known.add(name)


def _check(found: str, own: Path, store: str) -> None:
    """A symbolic link is the same file. A hard link is refused: SQLite names the journal after the file, so two names
    of one file have two journals, which corrupts it."""
    if not found:
        raise WrongDatabase("a database in memory", store)
    try:
        given = Path(found).stat()
    except FileNotFoundError:
        raise WrongDatabase(f"{found}, {_DELETED}", store) from None
    try:
        ours = own.stat()
    except FileNotFoundError:
        raise WrongDatabase(found, store) from None
    if (given.st_dev, given.st_ino) != (ours.st_dev, ours.st_ino):
        raise WrongDatabase(found, store)
    if given.st_nlink > 1 and os.path.realpath(found) != os.path.realpath(own):
        raise WrongDatabase(
            f"{found}, a hard link to the store's file (SQLite corrupts a file that is used under two names)", store
        )
