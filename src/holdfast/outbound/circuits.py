"""Where circuits are kept: in this process, or in the store's database for all processes."""

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeVar

from holdfast.core.circuit import Change, Circuit
from holdfast.stores.breaker import change_breaker, read_breaker
from holdfast.stores.protocol import Store

T = TypeVar("T")

_FRESH = Circuit()


class CircuitStore(Protocol):
    """Keeps circuits by name and applies a change to one as a whole, by a clock that all who share it agree on.

    `refresh` is for how many seconds a process may rely on what it saw of a closed or open circuit.
    """

    refresh: float

    def peek(self, name: str, /) -> Circuit | None:
        """The circuit where that costs nothing, else None."""
        ...

    async def change(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """What the circuit became, what came of it, and the time it was done at. `StoreUnavailable` if out of reach."""
        ...

    def change_sync(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """`change`, blocking."""
        ...


class MemoryCircuits:
    """Keeps circuits within this process, for all its threads and loops; gone with it."""

    refresh = 0.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Monotonic time put on a calendar: a wall clock that is set must not open or close anything.
        self._epoch = datetime.now(UTC) - timedelta(seconds=clock())
        self._circuits: dict[str, Circuit] = {}
        self._lock = threading.Lock()

    def peek(self, name: str, /) -> Circuit:
        """The circuit as it is."""
        return self._circuits.get(name, _FRESH)

    async def change(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """Applies a change to a circuit as a whole; see `CircuitStore`."""
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
    """Keeps circuits in the store's own database, for all processes; the database's clock decides.

    `store` may be a function, for one that is not known yet; `prepare` is called before a store is first used.
    """

    refresh = 1.0

    def __init__(self, store: Store | Callable[[], Store], prepare: Callable[[], None] = lambda: None) -> None:
        self._store, self._prepare = store, prepare
        self._prepared: Store | None = None

    def peek(self, name: str, /) -> None:
        """Nothing: looking costs a question."""

    async def change(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """Applies a change to a circuit as a whole; see `CircuitStore`."""
        store = self._named()
        if self._prepared is not store:
            await asyncio.to_thread(self._make_ready, store)
        before, now = await store.run(read_breaker(name))
        after, outcome = change(before, now)
        if after is before:
            return after, outcome, now
        return await store.run(change_breaker(name, change))

    def change_sync(self, name: str, change: Change[T], /) -> tuple[Circuit, T, datetime]:
        """`change`, blocking."""
        store = self._named()
        if self._prepared is not store:
            self._make_ready(store)
        before, now = store.run_sync(read_breaker(name))
        after, outcome = change(before, now)
        if after is before:
            return after, outcome, now
        return store.run_sync(change_breaker(name, change))

    def _named(self) -> Store:
        return self._store() if callable(self._store) else self._store

    def _make_ready(self, store: Store) -> None:
        self._prepare()
        self._prepared = store
