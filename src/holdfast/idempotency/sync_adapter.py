"""The request cycle of the blocking adapters: WSGI, and the decorators for Flask and Django."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

from holdfast.core.errors import KeyRequired
from holdfast.core.telemetry.correlation import correlate
from holdfast.idempotency.capture import ResponseCapture
from holdfast.idempotency.engine import IdempotencyEngine
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import Flow, run_flow_sync
from holdfast.idempotency.request import Request
from holdfast.stores.integrations.idempotency import Reservation, StoredResponse

R = TypeVar("R")
T = TypeVar("T")


class SyncAdapter(ABC, Generic[R]):
    """One request to an application and its response `R`, a type of the framework."""

    def __init__(
        self, engine: IdempotencyEngine, request: Request, keys: list[str], scope: Callable[[], object], required: bool
    ) -> None:
        self.engine, self.request, self._keys, self._scope, self._required = engine, request, keys, scope, required

    @abstractmethod
    def body(self, limit: int) -> bytes | None:
        """The body; None if it is longer than the limit, and then the rest is not read.

        Raises `ConnectionAbortedError` if the client disconnected before the end.
        """

    @abstractmethod
    def run(self, key: IdempotencyKey, body: bytes | None, capture: ResponseCapture | None) -> R:
        """Runs the application and feeds its response to the capture.

        `body` is the body that was read, or None; without a key, `capture` is None.
        """

    @abstractmethod
    def make(self, stored: StoredResponse) -> R: ...

    def discard(self, response: R) -> None:
        """Called with a response that is not sent."""

    def serve(self) -> R:
        """Runs the request, or responds without running it."""
        engine = self.engine
        if self.request.method not in engine.options.methods:
            return self.run(IdempotencyKey(engine, None), None, None)
        key = engine.key_of(self._keys)
        if isinstance(key, StoredResponse):
            return self.make(key)
        if key is None:
            return self._serve_without_key()
        try:
            body = self.body(engine.options.max_body)
        except ConnectionAbortedError:
            return self.make(engine.incomplete())
        if body is None:
            return self.make(engine.too_large())
        reservation = engine.reservation(self.request, self._scope(), key, body)
        if isinstance(reservation, StoredResponse):
            return self.make(reservation)
        response = self._run_flow(engine.admit(reservation))
        return self._serve_key(reservation, body) if response is None else self.make(response)

    def _serve_without_key(self) -> R:
        if self._required:
            return self.make(self.engine.missing())
        try:
            return self.run(IdempotencyKey(self.engine, None), None, None)
        except KeyRequired:
            return self.make(self.engine.missing())

    def _serve_key(self, reservation: Reservation, body: bytes) -> R:
        key = IdempotencyKey(self.engine, reservation)
        capture = ResponseCapture(self.engine, key, reservation)
        try:
            with correlate(idempotency_key=reservation.key):
                response = self.run(key, body, capture)
            self._run_flow(capture.settle(has_returned=True))
        except Exception as error:
            replacement = self._run_flow(capture.fail(error))
            if replacement is None:
                raise
            return self.make(replacement)
        finally:
            self.engine.renewal.end(reservation)
        if capture.replacement is None:
            return response
        self.discard(response)
        return self.make(capture.replacement)

    def _run_flow(self, flow: Flow[T]) -> T:
        return run_flow_sync(flow, self.engine.records)
