"""A request's key as its handler sees it, and storing the answer in the handler's own transaction."""

from datetime import timedelta
from typing import Any, TypeVar

from holdfast.core.errors import ReservationLost, UnsupportedConnection
from holdfast.idempotency.gate import Gate
from holdfast.idempotency.records import Finish
from holdfast.idempotency.response import stored_response
from holdfast.stores.connections.binding import bind, bind_sync
from holdfast.stores.connections.connection import run_on, run_on_async
from holdfast.stores.integrations.idempotency import Reservation, StoredResponse, complete
from holdfast.stores.protocol import Store

R = TypeVar("R")

_IDLE_TIMEOUT = timedelta(seconds=60)
_ERROR = 400


class IdempotencyKey:
    """The key of the request that is being handled. Without a key `complete` does nothing: the same code serves both."""

    def __init__(self, gate: Gate, held: Reservation | None) -> None:
        self._gate, self._held = gate, held
        self.completed: StoredResponse | None = None
        """What `complete` was called with: then the middleware stores nothing by itself."""
        self.lost = False
        """Set once `complete` found the key in other hands."""
        self.sync = SyncIdempotencyKey(self)

    def stands_for(self, status: int) -> bool:
        """Whether an application's answer with this status is the one that was completed, and not an error after it.

        A handler that completes with 402 and returns is answered by its framework with 200 or 201.
        """
        if self.completed is None or self.lost:
            return False
        return status < _ERROR or status == self.completed.status

    @property
    def key(self) -> str | None:
        return None if self._held is None else self._held.key

    @property
    def scope(self) -> str | None:
        return None if self._held is None else self._held.scope

    async def complete(self, response: R, *, status: int | None = None, conn: Any) -> R:
        """Stores the answer in `conn`'s transaction, with the effect: both or neither. Returns `response`.

        What is handed in is what is sent, to this client and to every repetition. `conn=None` commits on its own. Raises
        `ReservationLost` when another request has taken the key over, and then the database has undone the
        transaction: swallowing it commits nothing.
        """
        if self._held is None:
            return response
        stored = stored_response(response, status, self._gate.options.max_response)
        if conn is None:
            self._told(await self._gate.records.do(Finish(self._held, stored)))
        else:
            adapter = await bind(self._store_of(conn), conn, "idem.complete")
            try:
                await run_on_async(complete(self._held, stored, _IDLE_TIMEOUT), self._store_of(conn).dialect, adapter)
            except ReservationLost:
                self.lost = True
                raise
        self.completed = stored
        return response

    def _complete_sync(self, response: R, status: int | None, conn: Any) -> R:
        if self._held is None:
            return response
        stored = stored_response(response, status, self._gate.options.max_response)
        if conn is None:
            self._told(self._gate.records.do_sync(Finish(self._held, stored)))
        else:
            adapter = bind_sync(self._store_of(conn), conn, "idem.complete")
            try:
                run_on(complete(self._held, stored, _IDLE_TIMEOUT), self._store_of(conn).dialect, adapter)
            except ReservationLost:
                self.lost = True
                raise
        self.completed = stored
        return response

    def _told(self, finished: bool) -> None:
        assert self._held is not None
        if not finished:
            self.lost = True
            raise ReservationLost(self._held.scope, self._held.key)

    def _store_of(self, conn: object) -> Store:
        """The store whose transactions can hold the record."""
        if (store := self._gate.records.store) is None:
            kind = f"{type(conn).__module__.partition('.')[0]} {type(conn).__name__}"
            raise UnsupportedConnection(kind, "these records are in Redis and share no transaction; pass conn=None")
        return store


class SyncIdempotencyKey:
    """The blocking twin of a key's method."""

    def __init__(self, key: IdempotencyKey) -> None:
        self._key = key

    def complete(self, response: R, *, status: int | None = None, conn: Any) -> R:
        """`IdempotencyKey.complete`, blocking."""
        return self._key._complete_sync(response, status, conn)
