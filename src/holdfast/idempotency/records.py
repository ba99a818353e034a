"""Where idempotency records are kept: in the store's own database, or in Redis for services that have none.

What a request asks of them is a step, a plain value. Each place carries a step out awaiting or blocking, so that the
gate in front of the application is one text for both.
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
class Reserve:
    """Take the key, if it is free: `StoredRecord`, or none when it changed this very moment."""

    held: Reservation
    lease: timedelta
    keep: timedelta
    any_request: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """The record of a key: `StoredRecord` or none."""

    held: Reservation


@dataclass(frozen=True, slots=True)
class Finish:
    """Store the answer: false when the reservation was lost."""

    held: Reservation
    response: StoredResponse


@dataclass(frozen=True, slots=True)
class Release:
    """Let go of the key, for the same request or for any: false when there was nothing left to let go of."""

    held: Reservation
    any_request: bool = False


@dataclass(frozen=True, slots=True)
class Renew:
    """Prolong the leases: the owners that still hold theirs."""

    held: Sequence[Reservation]
    lease: timedelta


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait a while."""

    seconds: float


Step = Reserve | Look | Finish | Release | Renew
Flow = Generator[Step | Pause, Any, T]


class Records(Protocol):
    """A place that keeps records. `StoreError` when it cannot be reached."""

    @property
    def store(self) -> Store | None:
        """The store whose transactions can hold a record; none where there is no such thing."""
        ...

    async def do(self, step: Step) -> Any: ...

    def do_sync(self, step: Step) -> Any: ...


async def carry_out(flow: Flow[T], records: Records) -> T:
    """Runs a flow to its end, awaiting; that the records are away is the flow's to deal with."""
    return await drive_async(
        flow,
        lambda step: asyncio.sleep(step.seconds) if isinstance(step, Pause) else records.do(step),
        StoreError,
    )


def carry_out_sync(flow: Flow[T], records: Records) -> T:
    """Runs a flow to its end, blocking."""
    return drive(
        flow, lambda step: time.sleep(step.seconds) if isinstance(step, Pause) else records.do_sync(step), StoreError
    )


class Service(Protocol):
    """What is needed of `hf.ops`: the store, and a way to make its tables."""

    @property
    def store(self) -> Store: ...

    @property
    def prepare(self) -> Any: ...


class App(Protocol):
    """What is needed of a `Holdfast`."""

    @property
    def ops(self) -> Service: ...


class StoreRecords:
    """Records in the database of an app's store, where they can share the transaction of the business write."""

    def __init__(self, app: App) -> None:
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
        """The app's store, whose tables were made once if it makes them by itself."""
        service = self._app.ops
        with self._preparing:
            if self._ready is not service.store:
                service.prepare()
                self._ready = service.store
        return service.store


def _operation(step: Step) -> Operation[StoredRecord | None] | Operation[bool] | Operation[frozenset[str]]:
    match step:
        case Reserve(held, lease, keep, any_request):
            return stored.reserve(held, lease, keep, any_request=any_request)
        case Look(held):
            return stored.read_record(held.scope, held.key)
        case Finish(held, response):
            return stored.store_response(held, response)
        case Release(held, any_request):
            return stored.release(held, any_request=any_request)
        case Renew(several, lease):
            return stored.renew(several, lease)
        case _:
            assert_never(step)
