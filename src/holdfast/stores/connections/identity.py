"""The database that a connection uses."""

from typing import Any
from weakref import WeakSet

from holdfast.stores.operation import Query, Row, Steps, operation


@operation(reads=True)
def database_identity() -> Steps[Row]:
    """The database that the connection uses, in the form that its store compares; nothing is locked."""
    row, *_ = yield Query("database_identity")
    return row


class VerifiedConnections:
    """Connections that were found to use the store's database, kept in weak references."""

    def __init__(self) -> None:
        self._connections: WeakSet[Any] = WeakSet()

    def __contains__(self, physical: object) -> bool:
        return _can_be_remembered(physical) and physical in self._connections

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, physical: object) -> None:
        if _can_be_remembered(physical):
            self._connections.add(physical)


def _can_be_remembered(physical: object) -> bool:
    # Python's sqlite3 connections have no weak references; a new check takes microseconds and no round trip.
    return type(physical).__weakrefoffset__ != 0
