"""The storage of idempotency records: the store's database, or Redis for services without one.

A step is a value that describes one operation on the records. Each storage runs a step async or blocking, so the flows of
the engine are written once for both.
"""

import asyncio
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol, TypeVar, assert_never

from holdfast.core.drive import drive, drive_async
from holdfast.core.errors import StoreError
from holdfast.stores.integrations import idempotency as stored
from holdfast.stores.integrations.idempotency import Reservation, StoredRecord, StoredResponse
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReserveKey:
    """Reserve the key if it is free. Returns `StoredRecord`, or None if it changed concurrently."""

    reservation: Reservation
    lease: timedelta
    retention: timedelta
    any_request: bool = False


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the record of a key: `StoredRecord` or None."""

    reservation: Reservation


@dataclass(frozen=True, slots=True)
class StoreResponse:
    """Store the response; false if the reservation was lost."""

    reservation: Reservation
    response: StoredResponse


@dataclass(frozen=True, slots=True)
class ReleaseKey:
    """Release the key, so that the same request can use it, or any request with `any_request`.

    Returns false if this request no longer owns the key.
    """

    reservation: Reservation
    any_request: bool = False


@dataclass(frozen=True, slots=True)
class RenewKeys:
    """Extend the leases; returns the owners that still have theirs."""

    reservations: Sequence[Reservation]
    lease: timedelta


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait before the next step."""

    seconds: float


Step = ReserveKey | ReadRecord | StoreResponse | ReleaseKey | RenewKeys
Flow = Generator[Step | Pause, Any, T]


class Records(Protocol):
    """A storage of records. Raises `StoreError` if it is unavailable."""

    @property
    def store(self) -> Store | None:
        """The store whose transactions can contain a record; None if there is none."""
        ...

    async def do(self, step: Step) -> Any: ...

    def do_sync(self, step: Step) -> Any: ...


async def run_flow(flow: Flow[T], records: Records) -> T:
    """Runs a flow to its end. The flow handles `StoreError`."""
    return await drive_async(
        flow,
        lambda step: asyncio.sleep(step.seconds) if isinstance(step, Pause) else records.do(step),
        StoreError,
    )


def run_flow_sync(flow: Flow[T], records: Records) -> T:
    """The blocking form of `run_flow`."""
    return drive(
        flow, lambda step: time.sleep(step.seconds) if isinstance(step, Pause) else records.do_sync(step), StoreError
    )


class IdempotencyService(Protocol):
    """The part of `hf.ops` that is used here: the store, and a way to create its tables."""

    @property
    def store(self) -> Store: ...

    @property
    def prepare(self) -> Any: ...


class IdempotencyApp(Protocol):
    """The part of a `Holdfast` that is used here."""

    @property
    def ops(self) -> IdempotencyService: ...


class StoreRecords:
    """Records in the database of an app's store; a response can commit with the effect."""

    def __init__(self, app: IdempotencyApp) -> None:
        self._app = app
        self._ready: Store | None = None
        self._preparing = threading.Lock()

    @property
    def store(self) -> Store | None:
        return self._app.ops.store

    async def do(self, step: Step) -> Any:
        store = self._ready
        if store is not self._app.ops.store:
            store = await asyncio.to_thread(self._prepared)
        return await store.run(_operation(step))

    def do_sync(self, step: Step) -> Any:
        return self._prepared().run_sync(_operation(step))

    def _prepared(self) -> Store:
        """The app's store, after its tables were created if the app does so automatically."""
        service = self._app.ops
        with self._preparing:
            if self._ready is not service.store:
                service.prepare()
                self._ready = service.store
        return service.store


def _operation(step: Step) -> Operation[StoredRecord | None] | Operation[bool] | Operation[frozenset[str]]:
    match step:
        case ReserveKey(reservation, lease, retention, any_request):
            return stored.reserve(reservation, lease, retention, any_request=any_request)
        case ReadRecord(reservation):
            return stored.read_record(reservation.scope, reservation.key)
        case StoreResponse(reservation, response):
            return stored.store_response(reservation, response)
        case ReleaseKey(reservation, any_request):
            return stored.release(reservation, any_request=any_request)
        case RenewKeys(reservations, lease):
            return stored.renew(reservations, lease)
        case _:
            assert_never(step)
