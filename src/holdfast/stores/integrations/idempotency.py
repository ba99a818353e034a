"""Idempotency records: the request that reserved a key, and its response.

A reservation is fenced by its owner, a token that is new for each reservation. A request that lost its reservation can
neither store a response nor release the key.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

import orjson

from holdfast.core.encryption import EncryptedValue, encrypted_value
from holdfast.core.errors import NotFound, Refused, ReservationLost
from holdfast.stores.admin.actions import audited
from holdfast.stores.errors import RESERVATION_LOST
from holdfast.stores.operation import Query, Row, Steps, columns, operation
from holdfast.stores.row import row_reader

_BATCH = 1000
_FAILED_FROM = 400

Headers = tuple[tuple[str, str], ...]


class KeyStatus(StrEnum):
    """The state of the request that used a key."""

    STARTED = "started"
    COMPLETED = "completed"
    FAILED = "failed"  # an error response that was stored on purpose


@dataclass(frozen=True, slots=True)
class Reservation:
    """The reservation of a key by one request."""

    scope: str
    key: str
    request_hash: str
    owner: str
    method: str = ""
    path: str = ""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A stored response. Without a body it was too large or a stream: only the status and headers are known."""

    status: int
    headers: Headers = ()
    body: bytes | None = b""
    encrypted: EncryptedValue | None = None
    """The part of the response that this process cannot decrypt; then it has no headers and no body."""

    @property
    def progress(self) -> KeyStatus:
        return KeyStatus.FAILED if self.status >= _FAILED_FROM else KeyStatus.COMPLETED


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """The record of a key. `lapsed`: the request has started and its lease has expired."""

    owner: str
    request_hash: str
    progress: KeyStatus
    lapsed: bool
    response: StoredResponse | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """The record of a key for operators; without the headers and body of the response."""

    scope: str
    key: str
    status: KeyStatus
    method: str
    path: str
    request_hash: str
    owner: str
    reserved_at: datetime
    lease_until: datetime
    completed_at: datetime | None
    expires_at: datetime
    response_status: int | None
    response_bytes: int | None
    lapsed: bool


_record = row_reader(KeyRecord)


class RecordCursor(NamedTuple):
    """The end of a page of records."""

    expires_at: datetime
    scope: str
    key: str


@operation(single=True)
def reserve(
    held: Reservation, lease: timedelta, keep: timedelta, *, any_request: bool = False
) -> Steps[StoredRecord | None]:
    """Reserves a key that is new, expired or failed, or whose lease has expired; returns the current record.

    After a failure only the same request gets the key, any other request only with `any_request`. The reservation
    succeeded if the record has the caller's owner. None means a concurrent change: try again.
    """
    rows = yield Query("reserve_request", {**_values(held), "lease": lease, "keep": keep, "any_request": any_request})
    return _found(rows[0]) if rows else None


@operation(reads=True)
def read_record(scope: str, key: str) -> Steps[StoredRecord | None]:
    """The record of a key, if any."""
    rows = yield Query("read_request", {"scope": scope, "key": key})
    return _found(rows[0]) if rows else None


@operation(single=True)
def store_response(held: Reservation, response: StoredResponse) -> Steps[bool]:
    """Stores the response; False if the reservation is lost, and nothing changed."""
    return bool((yield Query("finish_request", {**_fence(held), **_response_values(response)})))


@operation
def complete(held: Reservation, response: StoredResponse, idle_timeout: timedelta) -> Steps[None]:
    """Stores the response in the caller's transaction.

    If the reservation is lost, the database raises and rolls back the whole transaction.
    """
    idle = {"idle_timeout_ms": round(idle_timeout.total_seconds() * 1000)}
    yield Query(
        "complete_request",
        {**_fence(held), **_response_values(response), **idle},
        raises=(RESERVATION_LOST, lambda: ReservationLost(held.scope, held.key)),
    )


@operation(single=True)
def release(held: Reservation, *, any_request: bool = False) -> Steps[bool]:
    """Releases a key that was not completed, for a retry of the same request, or with `any_request` for any request.

    False if the caller no longer has the reservation.
    """
    return bool((yield Query("forget_request" if any_request else "release_request", _fence(held))))


@operation
def renew(held: Sequence[Reservation], lease: timedelta) -> Steps[frozenset[str]]:
    """Renews the leases of running requests; returns the owners that still have their reservation."""
    batch = {"held": columns(("scope", "key", "owner"), [(one.scope, one.key, one.owner) for one in held])}
    return frozenset(str(row[0]) for row in (yield Query("renew_requests", {"lease": lease}, batch)))


@operation(reads=True)
def records(
    *,
    scope: str | None = None,
    key: str | None = None,
    status: KeyStatus | None = None,
    limit: int = 50,
    before: KeyRecord | RecordCursor | None = None,
) -> Steps[list[KeyRecord]]:
    """A page of records, newest first; pass the last one as `before` for the next."""
    given = {"scope": scope, "key": key, "status": status and status.value}
    values: dict[str, object] = {name: value for name, value in given.items() if value is not None}
    where = tuple(f"where_request_{name}" for name in values)
    if before is not None:
        where = (*where, "where_request_before")
        values |= {"before": before.expires_at, "before_scope": before.scope, "before_key": before.key}
    return [_record(row) for row in (yield Query("list_requests", values, slots=(("where", where),), limit=limit))]


@operation
def release_record(scope: str, key: str, actor: str, reason: str | None, *, force: bool = False) -> Steps[KeyStatus]:
    """Removes the record of a key, so that it can be used again, audited; returns its former state.

    A request that holds the key can no longer complete. A completed key is `Refused` unless `force`: its effect was
    applied, and the next request would apply it again.
    """
    rows = yield Query("read_request", {"scope": scope, "key": key})
    if not rows:
        raise NotFound("idempotency key", key, f"it may have expired, or belong to another scope than {scope!r}")
    found = _found(rows[0])
    if found.progress is not KeyStatus.STARTED and not force:
        raise Refused(
            "release",
            f"idempotency key {key!r}",
            found.progress.value,
            "add force (--force on the command line) to let its effect happen again",
        )
    fence = {"scope": scope, "key": key, "owner": found.owner, "status": found.progress.value}
    if not (yield Query("remove_request", fence)):
        raise Refused("release", f"idempotency key {key!r}", "being changed by a request", "try again")
    yield audited(actor, "release", "idempotency key", f"{scope} {key}", reason, {"status": found.progress.value})
    return found.progress


@operation
def forget_requests() -> Steps[tuple[int, bool]]:
    """Removes a batch of expired records; returns their number and whether there may be more."""
    yield Query("forget_leases")
    removed = len((yield Query("forget_requests", limit=_BATCH)))
    return removed, removed == _BATCH


@operation(reads=True)
def expired_requests() -> Steps[int]:
    """The total number of records that `forget_requests` would remove."""
    rows = yield Query("expired_requests")
    return int(rows[0][0])


def _fence(held: Reservation) -> dict[str, object]:
    return {"scope": held.scope, "key": held.key, "owner": held.owner}


def _values(held: Reservation) -> dict[str, object]:
    return {**_fence(held), "request_hash": held.request_hash, "method": held.method, "path": held.path}


def _response_values(response: StoredResponse) -> dict[str, object]:
    return {
        "status": response.progress.value,
        "response_status": response.status,
        "response_headers": orjson.dumps(response.headers).decode(),
        "response_body": response.body,
    }


def _found(row: Row) -> StoredRecord:
    owner, request_hash, progress, lapsed, status, headers, body = row
    progress = KeyStatus(progress)
    response = None
    if status is not None:
        response = read_response(status, headers or "[]", None if body is None else bytes(body))
    return StoredRecord(owner, request_hash, progress, progress is KeyStatus.STARTED and bool(lapsed), response)


def read_response(status: int, headers: str, body: bytes | None) -> StoredResponse:
    """A stored response; one that was not decrypted has neither headers nor body."""
    given = (headers, "" if body is None or not body.startswith(b"{") else body.decode(errors="replace"))
    if (encrypted := next(filter(None, map(encrypted_value, given)), None)) is not None:
        return StoredResponse(status, (), None, encrypted)
    return StoredResponse(status, tuple((name, value) for name, value in orjson.loads(headers)), body)
