"""Storage of circuit state: in this process, or in the store's database for all processes."""

import asyncio
import threading
import time
from collections.abc import Callable, Generator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

from holdfast.core.circuit import Change, Circuit
from holdfast.core.drive import drive, drive_async
from holdfast.stores.integrations.breaker import change_breaker, read_breaker
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store

T = TypeVar("T")

_FRESH = Circuit()


class CircuitStore(Protocol):
    """Stores circuits by name and applies each change atomically, with one clock for all processes that share it.

    `refresh`: for how many seconds a process may use cached state of a closed or open circuit.
    """

    refresh: float

    def peek(self, name: str, /) -> Circuit | None:
        """Returns the circuit if that needs no I/O, else None."""
        ...

    async def change(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """Returns the new circuit, the outcome of the change, and its time. Raises `StoreUnavailable`."""
        ...

    def change_sync(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """`change`, blocking."""
        ...


class MemoryCircuits:
    """Stores circuits in this process, for all its threads and event loops. A restart clears them."""

    refresh = 0.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Monotonic time as a datetime: a change of the wall clock must not open or close a circuit.
        self._epoch = datetime.now(UTC) - timedelta(seconds=clock())
        self._circuits: dict[str, Circuit] = {}
        self._lock = threading.Lock()

    def peek(self, name: str, /) -> Circuit:
        """Returns the current circuit."""
        return self._circuits.get(name, _FRESH)

    async def change(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """Applies a change atomically; see `CircuitStore`."""
        return self.change_sync(name, change)

    def change_sync(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """`change`, blocking."""
        with self._lock:
            now = self._epoch + timedelta(seconds=self._clock())
            before = self._circuits.get(name, _FRESH)
            after, outcome = change(before, now)
            if after is not before:
                self._circuits[name] = after
            return after, outcome, now


class StoreCircuits:
    """Stores circuits in the store's database, for all processes. The database's clock decides.

    `store` can be a function, for a store that is not open yet. `prepare` is called before a store is first used.
    """

    refresh = 1.0

    def __init__(self, store: Store | Callable[[], Store], prepare: Callable[[], None] = lambda: None) -> None:
        self._store, self._prepare = store, prepare
        self._prepared: Store | None = None

    def peek(self, name: str, /) -> None:
        """Returns None: reading needs a query."""

    async def change(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """Applies a change atomically; see `CircuitStore`."""
        store = self._current_store()
        if self._prepared is not store:
            await asyncio.to_thread(self._prepare_store, store)
        return await drive_async(_changed(name, change), store.run)

    def change_sync(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """`change`, blocking."""
        store = self._current_store()
        if self._prepared is not store:
            self._prepare_store(store)
        return drive(_changed(name, change), store.run_sync)

    def _current_store(self) -> Store:
        return self._store() if callable(self._store) else self._store

    def _prepare_store(self, store: Store) -> None:
        self._prepare()
        self._prepared = store


def _changed(name: str, change: Change[T]) -> Generator[Operation[Any], Any, tuple[Circuit, T, datetime]]:
    before, now = yield read_breaker(name)
    after, outcome = change(before, now)
    if after is before:
        return after, outcome, now
    return (yield change_breaker(name, change))  # type: ignore[no-any-return]
