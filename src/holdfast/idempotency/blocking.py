"""What the blocking fronts share: WSGI and the decorators of Flask and Django."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Generic, TypeVar

from holdfast.core.errors import KeyRequired, ReservationLost, StoreError
from holdfast.core.telemetry.correlation import correlate
from holdfast.idempotency.gate import Gate, uncommitted, unknown
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import carry_out_sync
from holdfast.idempotency.request import Request
from holdfast.idempotency.response import in_place_of, kept_headers
from holdfast.stores.integrations.idempotency import Reservation, StoredResponse

R = TypeVar("R")

Parts = tuple[int, Iterable[tuple[str, str]], bytes | None]
"""Status, headers and body of an answer; without a body where it is too long to be kept."""


class BlockingFront(ABC, Generic[R]):
    """One request on its way to an application and back, in a framework's own terms."""

    def __init__(self, gate: Gate, request: Request, given: list[str]) -> None:
        self.gate, self.request, self._given = gate, request, given

    @abstractmethod
    def required(self) -> bool: ...

    @abstractmethod
    def scope(self) -> object: ...

    @abstractmethod
    def body(self, limit: int) -> bytes | None:
        """The body; none when it is longer than the limit, and then no more of it is read.

        `ConnectionAbortedError` when the client went away before its end.
        """

    @abstractmethod
    def run(self, key: IdempotencyKey, body: bytes | None) -> R:
        """Runs the application; `body` is what was read of the request, none when nothing was."""

    @abstractmethod
    def parts(self, answer: R) -> Parts: ...

    @abstractmethod
    def make(self, stored: StoredResponse) -> R: ...

    def dismiss(self, answer: R) -> None:
        """Called with an answer that is not sent."""

    def serve(self) -> R:
        """Carries the request out, or answers it without."""
        gate = self.gate
        if self.request.method not in gate.options.methods:
            return self.run(IdempotencyKey(gate, None), None)
        key = gate.key_of(self._given)
        if isinstance(key, StoredResponse):
            return self.make(key)
        if key is None:
            return self._without_a_key()
        try:
            body = self.body(gate.options.max_body)
        except ConnectionAbortedError:
            return self.make(gate.cut_short())
        if body is None:
            return self.make(gate.too_large())
        held = gate.hold(self.request, self.scope(), key, body)
        if isinstance(held, StoredResponse):
            return self.make(held)
        answer = carry_out_sync(gate.admit(held), gate.records)
        return self._carried_out(held, body) if answer is None else self.make(answer)

    def _without_a_key(self) -> R:
        if self.required():
            return self.make(self.gate.missing())
        try:
            return self.run(IdempotencyKey(self.gate, None), None)
        except KeyRequired:
            return self.make(self.gate.missing())

    def _carried_out(self, held: Reservation, body: bytes) -> R:
        gate, key = self.gate, IdempotencyKey(self.gate, held)
        try:
            with correlate(idempotency_key=held.key):
                answer = self.run(key, body)
            instead = self._settled(held, key, *self.parts(answer))
        except ReservationLost:
            if not key.lost:
                raise
            return self.make(carry_out_sync(gate.lost(held), gate.records))
        except Exception:
            carry_out_sync(gate.abandon(held), gate.records)
            raise
        finally:
            gate.renewal.end(held)
        if instead is None:
            return answer
        self.dismiss(answer)
        return self.make(instead)

    def _settled(
        self,
        held: Reservation,
        key: IdempotencyKey,
        status: int,
        headers: Iterable[tuple[str, str]],
        body: bytes | None,
    ) -> StoredResponse | None:
        """What to send in place of the application's answer; none when that is to be sent."""
        gate, pairs, stored = self.gate, tuple(headers), key.completed
        if key.lost:
            return carry_out_sync(gate.lost(held), gate.records)
        if stored is None or not key.stands_for(status):
            kept = StoredResponse(status, kept_headers(pairs), body)
            return carry_out_sync(gate.settle(held, kept), gate.records)
        try:
            if not carry_out_sync(gate.committed(held), gate.records):
                carry_out_sync(gate.abandon(held), gate.records)
                return uncommitted()
        except StoreError:
            return unknown()
        return StoredResponse(stored.status, in_place_of(pairs, stored), stored.body)
