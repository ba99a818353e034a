"""Captures the response of an application: decides what is stored, what is sent, and when.

    start ──> holding ──> sent                  the whole response is stored, then sent
                 │
                 └──────> forwarding ──> sent   it is too large or an event stream: only its status and headers are stored

There is no I/O here. The ASGI and WSGI adapters feed a capture, run its flows and send what it decided.
"""

from collections.abc import Iterable
from enum import Enum, auto

from holdfast.core.errors import ReservationLost, StoreError
from holdfast.idempotency.engine import IdempotencyEngine, unknown
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import Flow
from holdfast.idempotency.response import kept_headers, merge_headers
from holdfast.stores.integrations.idempotency import Headers, Reservation, StoredResponse


class CaptureAction(Enum):
    """What the adapter does after a chunk of the body."""

    HOLD = auto()
    """Nothing: the response is not sent yet."""
    SETTLE = auto()
    """Run `settle`, and send the response if it returns true."""
    FORWARD = auto()
    """Send the chunk: the response is already stored and its start is sent."""


class ResponseCapture:
    """The response to one request that reserved a key."""

    def __init__(self, engine: IdempotencyEngine, key: IdempotencyKey, reservation: Reservation) -> None:
        self._engine, self._key, self._reservation = engine, key, reservation
        self._status: int | None = None
        self._headers: Headers = ()
        self._chunks: list[bytes] = []
        self._size = 0
        self._is_forwarding = False
        self._uncommitted: StoredResponse | None = None
        self.is_whole = False
        """Whether the response ended and is not too large to be stored."""
        self.is_sent = False
        self.replacement: StoredResponse | None = None
        """The response to send instead of the application's, after `settle` returned true."""

    def start(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        """Begins a response, and drops one that began earlier and was not sent."""
        if not self.is_sent:
            self._status, self._headers = status, tuple(headers)
            self._chunks, self._size, self.is_whole = [], 0, False

    def write(self, chunk: bytes, *, more: bool) -> CaptureAction:
        if self._is_forwarding:
            return CaptureAction.FORWARD
        if self.is_sent or self.is_whole or self._uncommitted is not None:
            return CaptureAction.HOLD  # this response is complete, or another one is sent instead of it
        if self._completed is not None:
            return CaptureAction.HOLD if more else CaptureAction.SETTLE
        self._chunks.append(chunk)
        self._size += len(chunk)
        if self._size > self._engine.options.max_response or self._is_event_stream:
            return CaptureAction.SETTLE
        self.is_whole = not more
        return CaptureAction.HOLD

    def settle(self, *, has_returned: bool) -> Flow[bool]:
        """Stores the response; true if one may be sent now.

        The response is stored when the application returned, not when it ended its response: a transaction that ends
        with the request, such as a session's, has then committed. A record must not exist before the effect, and
        SQLite could not write one while the application's transaction is open.

        False means: wait until the application returns, or there is nothing to send.
        """
        engine, reservation, completed = self._engine, self._reservation, self._uncommitted or self._completed
        if self._status is None:
            yield from engine.abandon(reservation)
            return False
        if self._key.lost:
            self.replacement = yield from engine.lost(reservation)
        elif completed is None:
            # Without its whole body if the client left or the body is too large: the effect must not happen again.
            body = self.body if self.is_whole else None
            stored = StoredResponse(self._status, kept_headers(self._headers), body)
            self.replacement = yield from engine.settle(reservation, stored)
        else:
            try:
                is_committed = yield from engine.committed(reservation)
            except StoreError:
                self.replacement = unknown()
                return True
            if is_committed:
                headers = merge_headers(self._headers, completed)
                self.replacement = StoredResponse(completed.status, headers, completed.body)
            elif has_returned:
                self.replacement = yield from engine.uncommitted(reservation)
            else:
                self._uncommitted = completed
                return False
        return True

    def fail(self, error: Exception) -> Flow[StoredResponse | None]:
        """Returns the response to send after the application raised, or None if the error must be raised again."""
        if not isinstance(error, ReservationLost):
            yield from self._engine.abandon(self._reservation)  # no effect after a stored response
            return None
        if self.is_sent or not self._key.lost:
            return None
        return (yield from self._engine.lost(self._reservation))

    def forward(self, *, more: bool) -> bytes:
        """Marks the response as sent; returns the part of the body to send. With `more`, later chunks are forwarded."""
        body, self._chunks = self.body, []
        self.is_sent, self._is_forwarding = True, more
        return body

    @property
    def body(self) -> bytes:
        return b"".join(self._chunks)

    @property
    def _completed(self) -> StoredResponse | None:
        """The response that the application stored in its own transaction, if this response is the one it completed with."""
        is_completed = self._status is not None and self._key.stands_for(self._status)
        return self._key.completed if is_completed else None

    @property
    def _is_event_stream(self) -> bool:
        return any(name.lower() == "content-type" and "text/event-stream" in value for name, value in self._headers)
