"""Runs each keyed request once, and replays its stored response to duplicates.

The engine does not depend on ASGI, WSGI or a framework. The adapters for ASGI, WSGI, Flask and Django call `admit`, run the application if it returns
None, and pass the response to `settle`. These methods are flows: generators that yield steps for the record store.
"""

import secrets
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from holdfast._log import get_logger
from holdfast.core.encryption import unreadable
from holdfast.core.errors import ConfigurationError, InvalidKey, StoreError
from holdfast.core.values.arguments import refuse_unknown, requires_options
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.idempotency.records import (
    Flow,
    IdempotencyApp,
    Pause,
    ReadRecord,
    Records,
    ReleaseKey,
    ReserveKey,
    StoreRecords,
    StoreResponse,
)
from holdfast.idempotency.renewal import Renewal
from holdfast.idempotency.request import Request, check_scope, read_key, request_hash
from holdfast.idempotency.response import REPLAYED, problem, with_length
from holdfast.stores.integrations.idempotency import KeyStatus, Reservation, StoredRecord, StoredResponse

log = get_logger("holdfast.idempotency")

A = TypeVar("A")

MIB = 1024 * 1024
_MIN_PAUSE, _MAX_PAUSE = 0.05, 0.5
_SERVER_ERROR = 500

ScopeOf = Callable[[Any], Any]
Required = bool | Callable[[Any], bool]
SCOPE_REMEDY = "pass a function of the request that returns the verified user or tenant, such as scope=user_id"
"""What to do if a middleware or decorator got no `scope=`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdempotencyOptions:
    """The checked parameters of a middleware or decorator."""

    header: str = "idempotency-key"
    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    lease: timedelta = timedelta(seconds=10)
    max_lock: timedelta = timedelta(minutes=15)
    retention: timedelta = timedelta(days=1)
    wait: timedelta = timedelta(0)
    cached_statuses: Container[int] = range(200, 400)
    conflict: int = 409
    max_body: int = MIB
    max_response: int = MIB
    reuse_after_failure: bool = False


class IdempotencySettings(TypedDict, total=False):
    """The options of every middleware and decorator.

    `lease`: how long a crash locks a key. `max_lock`: how long one request may lock a key. `retention`: how long a
    response is stored. `wait`: how long a duplicate waits for the first request. `cached_statuses`: the statuses whose
    response is stored; a 5xx never is. `conflict`: the status for a different request under the same key, 409 or 422.
    After a failure or a crash only the same request can use the key again, until the record expires;
    `reuse_after_failure` allows any request. Sizes are in bytes.
    """

    header: str
    methods: Iterable[str]
    lease: Duration
    max_lock: Duration
    retention: Duration
    wait: Duration
    cached_statuses: Container[int]
    conflict: int
    max_body: int
    max_response: int
    reuse_after_failure: bool


def options(**settings: Unpack[IdempotencySettings]) -> IdempotencyOptions:
    """Checks the settings and adds the defaults."""
    given: dict[str, Any] = {**settings}
    refuse_unknown(
        "HTTP idempotency", given, ("scope", "hf", "records", "required", *IdempotencySettings.__annotations__)
    )
    for name in ("lease", "max_lock", "retention", "wait"):
        if name in given:
            given[name] = to_timedelta(given[name], name=name)
    if "header" in given:
        given["header"] = given["header"].lower()
    if "methods" in given:
        given["methods"] = frozenset(method.upper() for method in given["methods"])
    checked = IdempotencyOptions(**given)
    if checked.conflict not in (409, 422):
        raise ConfigurationError(
            f"conflict is {checked.conflict}; give 409 or 422, the status for another request with the same key"
        )
    if not timedelta(milliseconds=100) <= checked.lease <= checked.retention:
        raise ConfigurationError(
            f"lease is {checked.lease}; give at least 100ms, and less than retention ({checked.retention})"
        )
    if checked.max_lock > checked.retention:
        raise ConfigurationError(
            f"max_lock is {checked.max_lock}; give no more than retention ({checked.retention}): a request whose record "
            "expired while it ran would run again"
        )
    return checked


class IdempotencyEngine:
    """Admits requests by their key and stores their responses."""

    def __init__(self, records: Records, options: IdempotencyOptions) -> None:
        self.records, self.options = records, options
        self.renewal = Renewal(records, options.lease, options.max_lock)

    @property
    def _header(self) -> str:
        """The name of the header in title case, for texts."""
        return self.options.header.title()

    def key_of(self, given: list[str]) -> str | StoredResponse | None:
        """The key in the header's values, None without one, or the response to an invalid one."""
        try:
            return read_key(given)
        except InvalidKey as error:
            name = self._header
            return problem(400, "idempotency-key-invalid", f"The header {name} is invalid", f"{name}: {error}")

    def missing(self) -> StoredResponse:
        """The response to a request without a key, if one is required."""
        name = self._header
        return problem(
            400,
            "idempotency-key-missing",
            f"The header {name} is required",
            f"This operation must not run twice. Send the header {name} with a new value for each operation, and the "
            "same value for each retry of it.",
        )

    def too_large(self) -> StoredResponse:
        """The response to a request whose body exceeds the limit."""
        return problem(
            413,
            "idempotent-request-too-large",
            "The request is too large for an idempotency key",
            f"A request with an idempotency key may have {self.options.max_body:,} bytes. Upload the content first and "
            "refer to it.",
        )

    def incomplete(self) -> StoredResponse:
        """The response to a request whose body ends too early."""
        return problem(
            400,
            "idempotent-request-cut-short",
            "The request ended too early",
            "The body is shorter than its content-length. The request did not run: send it again.",
        )

    def reservation(self, request: Request, scope: object, key: str, body: bytes) -> Reservation | StoredResponse:
        """The reservation to make for this request, or the response if the owner of its key is unknown."""
        try:
            owner = check_scope(scope)
        except InvalidKey as error:
            return problem(400, "idempotency-scope-missing", "The owner of this key is unknown", error.problem)
        content_type = request.headers.get("content-type", "")
        digest = request_hash(request.method, request.path, request.query, content_type, body)
        return Reservation(owner, key, digest, secrets.token_hex(16), request.method[:20], request.path[:200])

    def admit(self, reservation: Reservation) -> Flow[StoredResponse | None]:
        """Reserves the key. None: run the request; else the response. Rejects the request if the records are unavailable."""
        waited, pause = timedelta(0), _MIN_PAUSE
        try:
            while True:
                found: StoredRecord | None = yield self._reserve(reservation)
                if found is not None and found.owner == reservation.owner:
                    self.renewal.begin(reservation)
                    return None
                is_running = found is None or found.progress is KeyStatus.STARTED
                if not is_running or waited >= self.options.wait or not self._is_same(found, reservation):
                    return self._response(found, reservation)
                yield Pause(pause)
                waited += timedelta(seconds=pause)
                pause = min(pause * 2, _MAX_PAUSE)
        except StoreError as error:
            log.error("idempotency store unavailable", error=str(error))
            return unavailable()

    def settle(self, reservation: Reservation, response: StoredResponse) -> Flow[StoredResponse | None]:
        """Stores the application's response, or releases the key. None: send the response; else send this one instead.

        A request that lost its key sends the response of the current owner.
        """
        self.renewal.end(reservation)
        try:
            if response.status >= _SERVER_ERROR or response.status not in self.options.cached_statuses:
                yield ReleaseKey(reservation, self.options.reuse_after_failure)
                return None
            if (yield StoreResponse(reservation, response)):
                return None
            found: StoredRecord | None = yield ReadRecord(reservation)
            if found is not None and found.owner == reservation.owner:
                return None  # it was completed in the application's transaction, and an error followed
            log.warning("idempotency lease lost", scope=reservation.scope, key=reservation.key, path=reservation.path)
            return None if found is None else self._response(found, reservation)
        except StoreError as error:
            # The effect is done. With its response the client does not retry; with an error it would.
            log.error("idempotency response not stored", scope=reservation.scope, key=reservation.key, error=str(error))
            return None

    def committed(self, reservation: Reservation) -> Flow[bool]:
        """Whether the transaction in which the application completed the request is committed."""
        found: StoredRecord | None = yield ReadRecord(reservation)
        return found is not None and found.owner == reservation.owner and found.progress is not KeyStatus.STARTED

    def lost(self, reservation: Reservation) -> Flow[StoredResponse]:
        """The response to a request whose transaction was rolled back because it had lost its key."""
        self.renewal.end(reservation)
        try:
            return self._response((yield ReadRecord(reservation)), reservation)
        except StoreError:
            return unknown()

    def uncommitted(self, reservation: Reservation) -> Flow[StoredResponse]:
        """The response if the application completed the request but did not commit; releases its key."""
        log.warning(
            "request not committed",
            scope=reservation.scope,
            key=reservation.key,
            path=reservation.path,
            hint="the request called complete(..., conn=...) and its transaction was not committed; commit it before the "
            "request ends, for example with `async with session.begin():`",
        )
        yield from self.abandon(reservation)
        return problem(
            500,
            "idempotent-request-not-committed",
            "The effect of this request was not committed",
            "What it wrote in its transaction was not stored. Retry with the same key.",
        )

    def abandon(self, reservation: Reservation) -> Flow[None]:
        """Releases the key after a failure: the same request may use it again."""
        self.renewal.end(reservation)
        try:
            yield ReleaseKey(reservation, self.options.reuse_after_failure)
        except StoreError as error:
            log.warning(
                "idempotency key release failed", scope=reservation.scope, key=reservation.key, error=str(error)
            )

    def _reserve(self, reservation: Reservation) -> ReserveKey:
        return ReserveKey(reservation, self.options.lease, self.options.retention, self.options.reuse_after_failure)

    def _is_same(self, found: StoredRecord | None, reservation: Reservation) -> bool:
        if found is None or found.request_hash == reservation.request_hash:
            return True
        return found.lapsed and self.options.reuse_after_failure

    def _response(self, found: StoredRecord | None, reservation: Reservation) -> StoredResponse:
        if not self._is_same(found, reservation):
            return problem(
                self.options.conflict,
                "idempotency-key-reused",
                "This Idempotency-Key was used for another request",
                "The method, path, query or body differs from the first request with this key. Use a new key for a new "
                "operation; repeat a request unchanged with the same key.",
            )
        if found is None or found.response is None:
            return problem(
                409,
                "idempotent-request-in-progress",
                "This request is already running",
                "A request with the same Idempotency-Key is running. Retry shortly to get its response.",
                retry_after=1,
            )
        if found.response.encrypted is not None:
            why = str(unreadable(found.response.encrypted))
            log.error("idempotency response unreadable", scope=reservation.scope, key=reservation.key, error=why)
            return unreadable_response()
        if found.response.body is None:
            return problem(
                409,
                "idempotent-response-not-kept",
                "This request has already run",
                f"Its status was {found.response.status}; its response was too large to be stored. It did not run again: "
                "read the result instead.",
            )
        return with_length(found.response, REPLAYED)


def unreadable_response() -> StoredResponse:
    """The response if the stored one cannot be decrypted."""
    return problem(
        503,
        "idempotent-response-unavailable",
        "This request has already run",
        "Its response is stored and cannot be read at present. It did not run again: retry later with the same key.",
        retry_after=30,
    )


def unavailable() -> StoredResponse:
    """The response if the records are unavailable before the request runs."""
    return problem(
        503,
        "idempotency-store-unavailable",
        "The request was not started",
        "The idempotency records are unavailable, so it is unknown whether an earlier request with this key ran. Retry "
        "shortly with the same key.",
        retry_after=1,
    )


def unknown() -> StoredResponse:
    """The response if the records became unavailable after the application ran."""
    return problem(
        503,
        "idempotency-store-unavailable",
        "It is unknown whether the request ran",
        "The record of its response is currently unavailable. Retry shortly with the same key: the request does not run "
        "twice.",
        retry_after=1,
    )


def make_engine(
    hf: IdempotencyApp | None, records: Records | None, scope: object, options: IdempotencyOptions
) -> IdempotencyEngine:
    """An engine with the records of an app's store, or with other records."""
    if not callable(scope):
        raise ConfigurationError(
            f"scope is {scope!r}; give a function of the request that returns the owner of the key, such as "
            "lambda request: request.state.user_id"
        )
    if (hf is None) is (records is None):
        what = "neither hf= nor records=" if hf is None else "both hf= and records="
        raise ConfigurationError(
            f"HTTP idempotency got {what}; give hf= to keep records in the app's database, or records=RedisRecords(url)"
        )
    if records is None:
        if not hasattr(type(hf), "ops"):
            raise ConfigurationError(f"hf is {hf!r}; give the Holdfast app")
        assert hf is not None
        records = StoreRecords(hf)
    return IdempotencyEngine(records, options)


class BaseMiddleware(Generic[A]):
    """The application, and the engine that handles its requests with a key."""

    @requires_options(scope=SCOPE_REMEDY)
    def __init__(
        self,
        app: A,
        hf: IdempotencyApp | None = None,
        *,
        scope: ScopeOf,
        records: Records | None = None,
        required: Required = False,
        **settings: Unpack[IdempotencySettings],
    ) -> None:
        self.app = app
        self._engine = make_engine(hf, records, scope, options(**settings))
        self._scope_of, self._required = scope, required
