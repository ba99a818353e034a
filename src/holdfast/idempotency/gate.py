"""The gate in front of an application: lets a request in once, and answers its repetitions.

It speaks no protocol. ASGI, WSGI and the decorators bring requests to `admit`, run the application if it says so, and
bring the answer to `settle`.
"""

import secrets
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from holdfast._log import get_logger
from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import ConfigurationError, InvalidKey, StoreError
from holdfast.idempotency.records import App, Finish, Flow, Look, Pause, Records, Release, Reserve, StoreRecords
from holdfast.idempotency.renewal import Renewal
from holdfast.idempotency.request import Request, check_scope, read_key, request_hash
from holdfast.idempotency.response import REPLAYED, problem, with_length
from holdfast.stores.integrations.idempotency import KeyStatus, Reservation, StoredRecord, StoredResponse

log = get_logger("holdfast.idempotency")

MIB = 1024 * 1024
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5
_SERVER_ERROR = 500

ScopeOf = Callable[[Any], Any]
Required = bool | Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a gate treats requests; what the middleware's parameters become."""

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


class Chosen(TypedDict, total=False):
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


def options(**chosen: Unpack[Chosen]) -> Options:
    """Checked options; what is left out has its default."""
    given: dict[str, Any] = {**chosen}
    for name in ("lease", "max_lock", "retention", "wait"):
        if name in given:
            given[name] = to_timedelta(given[name], name=name)
    if "header" in given:
        given["header"] = given["header"].lower()
    if "methods" in given:
        given["methods"] = frozenset(method.upper() for method in given["methods"])
    made = Options(**given)
    if made.conflict not in (409, 422):
        raise ConfigurationError(
            f"conflict is {made.conflict}; another request under the same key is answered 409 or 422"
        )
    if not timedelta(milliseconds=100) <= made.lease <= made.retention:
        raise ConfigurationError(
            f"lease is {made.lease}; give at least 100ms, and less than retention ({made.retention})"
        )
    if made.max_lock > made.retention:
        raise ConfigurationError(
            f"max_lock is {made.max_lock}; give no more than retention ({made.retention}): a request whose record "
            "expired while it ran would run again"
        )
    return made


class Gate:
    """Admits requests by their key and settles what became of them."""

    def __init__(self, records: Records, options: Options) -> None:
        self.records, self.options = records, options
        self.renewal = Renewal(records, options.lease, options.max_lock)

    @property
    def _header(self) -> str:
        """The header's name as people write it; it is kept in lower case."""
        return self.options.header.title()

    def key_of(self, given: list[str]) -> str | StoredResponse | None:
        """The key in the header's values, none without one, or the answer to one that cannot be read."""
        try:
            return read_key(given)
        except InvalidKey as error:
            name = self._header
            return problem(400, "idempotency-key-invalid", f"The header {name} cannot be used", f"{name}: {error}")

    def missing(self) -> StoredResponse:
        """The answer to a request without a key where one is required."""
        name = self._header
        return problem(
            400,
            "idempotency-key-missing",
            f"The header {name} is required",
            f"This operation must not happen twice: send the header {name} with a value that is new for each "
            "operation and the same for each try of it.",
        )

    def too_large(self) -> StoredResponse:
        """The answer to a body that is over its limit."""
        return problem(
            413,
            "idempotent-request-too-large",
            "The request is too large to be made idempotent",
            f"A request with an idempotency key may have {self.options.max_body:,} bytes; upload the content first and "
            "refer to it.",
        )

    def cut_short(self) -> StoredResponse:
        """The answer to a body that ends too early; hardly anybody is left to read it."""
        return problem(
            400,
            "idempotent-request-cut-short",
            "The request ended too early",
            "Less came than its content-length says. It was not carried out: send it again.",
        )

    def hold(self, request: Request, scope: object, key: str, body: bytes) -> Reservation | StoredResponse:
        """What this request wants to hold, or the answer to one that does not say whose it is."""
        try:
            owner = check_scope(scope)
        except InvalidKey as error:
            return problem(400, "idempotency-scope-missing", "It is not known whose key this is", str(error))
        content_type = request.headers.get("content-type", "")
        digest = request_hash(request.method, request.path, request.query, content_type, body)
        return Reservation(owner, key, digest, secrets.token_hex(16), request.method[:20], request.path[:200])

    def admit(self, held: Reservation) -> Flow[StoredResponse | None]:
        """Reserves the key: none says "run it", else this is the answer. Fails closed when the records are away."""
        waited, pause = timedelta(0), _FIRST_PAUSE
        try:
            while True:
                found: StoredRecord | None = yield self._reserve(held)
                if found is not None and found.owner == held.owner:
                    self.renewal.begin(held)
                    return None
                under_way = found is None or found.progress is KeyStatus.STARTED
                if not under_way or waited >= self.options.wait or not self._same(found, held):
                    return self._answer(found, held)
                yield Pause(pause)
                waited += timedelta(seconds=pause)
                pause = min(pause * 2, _LONGEST_PAUSE)
        except StoreError as error:
            log.error("idempotency store unavailable", error=str(error))
            return unavailable()

    def settle(self, held: Reservation, response: StoredResponse) -> Flow[StoredResponse | None]:
        """Stores what the application answered, or releases the key; none says "send it", else this is the answer.

        Another answer is sent when the request lost its key: then the present owner's is the one that counts.
        """
        self.renewal.end(held)
        try:
            if response.status >= _SERVER_ERROR or response.status not in self.options.cached_statuses:
                yield Release(held, self.options.reuse_after_failure)
                return None
            if (yield Finish(held, response)):
                return None
            found: StoredRecord | None = yield Look(held)
            if found is not None and found.owner == held.owner:
                return None  # it was completed in the application's transaction, and an error came after
            log.warning("key lease lost", scope=held.scope, key=held.key, path=held.path)
            return None if found is None else self._answer(found, held)
        except StoreError as error:
            # The effect is done: the client is better off with its answer than with an error and a reason to repeat.
            log.error("response not stored", scope=held.scope, key=held.key, error=str(error))
            return None

    def committed(self, held: Reservation) -> Flow[bool]:
        """Whether the answer that was completed in the application's transaction is there for good."""
        found: StoredRecord | None = yield Look(held)
        return found is not None and found.owner == held.owner and found.progress is not KeyStatus.STARTED

    def lost(self, held: Reservation) -> Flow[StoredResponse]:
        """The answer to a request whose transaction was refused because it had lost its key."""
        self.renewal.end(held)
        try:
            return self._answer((yield Look(held)), held)
        except StoreError:
            return unknown()

    def abandon(self, held: Reservation) -> Flow[None]:
        """Lets go of the key after a failure: the same request may try again."""
        self.renewal.end(held)
        try:
            yield Release(held, self.options.reuse_after_failure)
        except StoreError as error:
            log.warning("key release failed", scope=held.scope, key=held.key, error=str(error))

    def _reserve(self, held: Reservation) -> Reserve:
        return Reserve(held, self.options.lease, self.options.retention, self.options.reuse_after_failure)

    def _same(self, found: StoredRecord | None, held: Reservation) -> bool:
        if found is None or found.request_hash == held.request_hash:
            return True
        return found.lapsed and self.options.reuse_after_failure

    def _answer(self, found: StoredRecord | None, held: Reservation) -> StoredResponse:
        if not self._same(found, held):
            return problem(
                self.options.conflict,
                "idempotency-key-reused",
                "This Idempotency-Key was used for another request",
                "The method, path, query or body differs from the request that used this key first. Use a new key for a "
                "new operation, and repeat the same request under the same key.",
            )
        if found is None or found.response is None:
            return problem(
                409,
                "idempotent-request-in-progress",
                "This request is already being carried out",
                "A request with the same Idempotency-Key is under way. Ask again shortly for its answer.",
                retry_after=1,
            )
        if found.response.body is None:
            return problem(
                409,
                "idempotent-response-not-kept",
                "This request was carried out before",
                f"It was answered with status {found.response.status}; the answer was too large to be kept. It was not "
                "carried out again: read the result instead.",
            )
        return with_length(found.response, REPLAYED)


def uncommitted() -> StoredResponse:
    """The answer when the application completed the request but did not commit."""
    return problem(
        500,
        "idempotent-request-not-committed",
        "The request was not carried out",
        "Its transaction was not committed. Repeat it under the same key.",
    )


def unavailable() -> StoredResponse:
    """The answer when the records cannot be reached."""
    return problem(
        503,
        "idempotency-store-unavailable",
        "The request was not carried out",
        "Whether it was carried out before cannot be looked up at the moment. Repeat it shortly under the same key.",
        retry_after=1,
    )


def unknown() -> StoredResponse:
    """The answer when the records went away after the application ran."""
    return problem(
        503,
        "idempotency-store-unavailable",
        "It is not known whether the request was carried out",
        "The record of its answer cannot be looked up at the moment. Repeat it shortly under the same key: it is not "
        "carried out twice.",
        retry_after=1,
    )


def open_gate(hf: App | None, records: Records | None, scope: object, chosen: Options) -> Gate:
    """A gate on an app's store, or on other records; `scope` must be a function of the request."""
    if not callable(scope):
        raise ConfigurationError(
            f"scope is {scope!r}; give a function of the request that returns whose key it is, such as "
            "lambda request: request.headers['x-user']"
        )
    if (hf is None) is (records is None):
        raise ConfigurationError("pass hf= to keep records in its store, or records= such as RedisRecords(url)")
    if records is None:
        if not hasattr(type(hf), "ops"):
            raise ConfigurationError(f"hf is {hf!r}; give the Holdfast app")
        assert hf is not None
        records = StoreRecords(hf)
    return Gate(records, chosen)
