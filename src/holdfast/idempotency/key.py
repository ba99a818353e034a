"""The key of a request for its handler, which can store the response in its own transaction."""

from datetime import timedelta
from typing import Any, TypeVar

from holdfast.core.errors import ReservationLost, UnsupportedConnection
from holdfast.core.values.arguments import checks_options
from holdfast.idempotency.engine import IdempotencyEngine
from holdfast.idempotency.records import StoreResponse
from holdfast.idempotency.response import stored_response
from holdfast.stores.connections.caller_transaction import bind, bind_sync
from holdfast.stores.connections.connection import run_on, run_on_async
from holdfast.stores.integrations.idempotency import Reservation, StoredResponse, complete
from holdfast.stores.protocol import Store

R = TypeVar("R")

_IDLE_TIMEOUT = timedelta(seconds=60)
_ERROR = 400


class IdempotencyKey:
    """The key of the current request.

    Without a key `complete` does nothing, so the same handler works with and without one.
    """

    def __init__(self, engine: IdempotencyEngine, reservation: Reservation | None) -> None:
        self._engine, self._reservation = engine, reservation
        self.completed: StoredResponse | None = None
        """The response that `complete` stored; the middleware then stores none."""
        self.lost = False
        """Whether `complete` found that another request owns the key."""
        self.sync = SyncIdempotencyKey(self)

    def stands_for(self, status: int) -> bool:
        """Whether a response with this status is the completed one, and not a later error.

        If a handler completes with 402 and returns, its framework responds with 200 or 201.
        """
        if self.completed is None or self.lost:
            return False
        return status < _ERROR or status == self.completed.status

    @property
    def key(self) -> str | None:
        return None if self._reservation is None else self._reservation.key

    @property
    def scope(self) -> str | None:
        return None if self._reservation is None else self._reservation.scope

    @checks_options
    async def complete(self, response: R, *, status: int | None = None, conn: Any) -> R:
        """Stores the response in the transaction of `conn` together with the effect. Returns `response`.

        This response is sent to the client and to every duplicate. `conn=None` stores it in a separate transaction.
        Raises `ReservationLost` if another request has taken over the key. The database has then rolled back the
        transaction, so catching the error commits nothing.
        """
        if self._reservation is None:
            return response
        stored = stored_response(response, status, self._engine.options.max_response)
        if conn is None:
            self._check_stored(await self._engine.records.do(StoreResponse(self._reservation, stored)))
        else:
            adapter = await bind(self._store_of(conn), conn, "idem.complete")
            try:
                await run_on_async(
                    complete(self._reservation, stored, _IDLE_TIMEOUT), self._store_of(conn).dialect, adapter
                )
            except ReservationLost:
                self.lost = True
                raise
        self.completed = stored
        return response

    def _complete_sync(self, response: R, status: int | None, conn: Any) -> R:
        if self._reservation is None:
            return response
        stored = stored_response(response, status, self._engine.options.max_response)
        if conn is None:
            self._check_stored(self._engine.records.do_sync(StoreResponse(self._reservation, stored)))
        else:
            adapter = bind_sync(self._store_of(conn), conn, "idem.complete")
            try:
                run_on(complete(self._reservation, stored, _IDLE_TIMEOUT), self._store_of(conn).dialect, adapter)
            except ReservationLost:
                self.lost = True
                raise
        self.completed = stored
        return response

    def _check_stored(self, is_stored: bool) -> None:
        assert self._reservation is not None
        if not is_stored:
            self.lost = True
            raise ReservationLost(self._reservation.scope, self._reservation.key)

    def _store_of(self, conn: object) -> Store:
        """The store whose transactions can contain the record."""
        if (store := self._engine.records.store) is None:
            kind = f"{type(conn).__module__.partition('.')[0]} {type(conn).__name__}"
            raise UnsupportedConnection(
                kind, "these records are in Redis and cannot share a transaction; pass conn=None"
            )
        return store


class SyncIdempotencyKey:
    """The blocking form of `IdempotencyKey`."""

    def __init__(self, key: IdempotencyKey) -> None:
        self._key = key

    @checks_options
    def complete(self, response: R, *, status: int | None = None, conn: Any) -> R:
        """`IdempotencyKey.complete`, blocking."""
        return self._key._complete_sync(response, status, conn)
