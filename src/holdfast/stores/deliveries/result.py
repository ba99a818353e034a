"""Results: what handlers returned, written with the settlement of their delivery."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.delivery import Claim, Status
from holdfast.core.identity import delivery_range
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Operation, Query, Steps, columns, operation
from holdfast.stores.row import row_reader

_RESULT = ("delivery_id", "fence", "result", "keep")
_CHUNK_BYTES = 4_000_000
_BATCH = 1000


class KeptResult(NamedTuple):
    """The result of a claim as JSON text, and how long it is kept."""

    delivery_id: UUID
    fence: int
    result: str
    keep: timedelta


class DeliveryOutcome(NamedTuple):
    """How a delivery ended, if it did. `result` is JSON text, None if no result is kept; `queue` is None if it was pruned."""

    id: UUID
    consumer: str
    queue: str | None
    status: Status
    discarded: bool
    error_type: str | None
    last_error: str | None
    result: str | None


class StoredResult(NamedTuple):
    """The result of a delivery as JSON text, when it was stored, and when it expires."""

    result: str
    stored_at: datetime
    expires_at: datetime


_outcome, _stored = row_reader(DeliveryOutcome), row_reader(StoredResult)


def keep_results(results: Sequence[KeptResult]) -> Steps[None]:
    """Stores results in the transaction that settled their claims; a claim that it did not settle gets none."""
    for chunk in _chunks(results):
        yield Query("keep_results", batches={"results": columns(_RESULT, chunk)})


def complete_with_result(completion: Operation[None], claim: Claim, result: str, keep: timedelta) -> Operation[None]:
    """Runs `completion`, which completes a claim in the caller's transaction, and stores its result."""

    def steps() -> Steps[None]:
        yield from completion.start()
        yield from keep_results([KeptResult(claim.delivery_id, claim.fence, result, keep)])

    return Operation(steps)


@operation(reads=True)
def outcomes(message_id: UUID) -> Steps[list[DeliveryOutcome]]:
    """How the deliveries of a message ended. A result of an earlier cycle is not returned, nor one that has expired."""
    low, high = delivery_range(message_id)
    return [_outcome(row) for row in (yield Query("outcomes", {"message_id": message_id, "low": low, "high": high}))]


@operation(reads=True)
def awaited_deliveries(ids: Iterable[UUID]) -> Steps[frozenset[UUID]]:
    """The deliveries that are pending or in flight; the others have ended or do not exist."""
    return frozenset(as_uuid(row[0]) for row in (yield Query("awaited_deliveries", {"ids": list(ids)})))


@operation(reads=True)
def result_of(delivery_id: UUID) -> Steps[StoredResult | None]:
    """The result of a delivery, if one is kept."""
    rows = yield Query("result_of", {"delivery_id": delivery_id})
    return _stored(rows[0]) if rows else None


@operation
def forget_results() -> Steps[bool]:
    """Removes a batch of expired results; returns whether there may be more."""
    return len((yield Query("forget_results", limit=_BATCH))) == _BATCH


def _chunks(results: Sequence[KeptResult]) -> Iterator[list[KeptResult]]:
    """Groups of results that fit into one statement."""
    chunk: list[KeptResult] = []
    size = 0
    for result in results:
        size += len(result.result)
        if chunk and size > _CHUNK_BYTES:
            yield chunk
            chunk, size = [], len(result.result)
        chunk.append(result)
    if chunk:
        yield chunk
