"""The circuits of all endpoints, read with one query a second, independent of the number of endpoints."""

import time
from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from holdfast.core.circuit import Change, Circuit
from holdfast.outbound.circuits import StoreCircuits
from holdfast.stores.integrations.breaker import StoredBreaker
from holdfast.stores.protocol import Store

T = TypeVar("T")

_CLOSED = Circuit()
_TRUSTED_SECONDS = 2.0


class EndpointCircuits(StoreCircuits):
    """Circuits in the store. A closed circuit that was read recently needs no query."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._read: dict[str, Circuit] = {}
        self._read_at = float("-inf")
        self._changed: dict[str, tuple[float, Circuit]] = {}

    def take(self, found: Iterable[StoredBreaker], asked_at: float) -> None:
        """Caches all stored circuits. `asked_at` is the monotonic time at which the query started."""
        self._changed = {name: made for name, made in self._changed.items() if made[0] >= asked_at}
        self._read = {one.name: one.circuit for one in found} | {name: made[1] for name, made in self._changed.items()}
        self._read_at = asked_at

    def peek(self, name: str, /) -> Circuit | None:  # type: ignore[override]
        """Returns the circuit if it is closed and was read recently; for an open one the breaker has newer state."""
        if time.monotonic() - self._read_at > _TRUSTED_SECONDS:
            return None
        circuit = self._read.get(name, _CLOSED)
        return circuit if circuit.open_until is None else None

    async def change(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """Applies a change atomically; see `CircuitStore`."""
        circuit, outcome, now = await super().change(name, change)
        self._read[name] = circuit
        self._changed[name] = (time.monotonic(), circuit)
        return circuit, outcome, now
