"""The parts that the async and the blocking service client share: how a call is made and what its response means.

An attempt is a generator of steps: get a token, check the breaker, exchange a request for a response. The transport runs
a step: it returns a value (blocking) or an awaitable (async).
"""

import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from http.cookiejar import CookieJar, DefaultCookiePolicy
from ssl import SSLContext
from typing import Any, Protocol, TypedDict
from uuid import uuid4

from pydantic_core import to_json

from holdfast._log import get_logger
from holdfast.core.errors import CircuitOpen, ConfigurationError, ServiceRefused, TerminalError
from holdfast.core.failures.classify import VerdictKind, classify
from holdfast.core.failures.exception_info import carried_status
from holdfast.core.failures.http import fits_header, verdict_for
from holdfast.core.key import check_key
from holdfast.core.retry import RetryPolicy
from holdfast.core.telemetry.correlation import correlation
from holdfast.core.telemetry.log_fields import log_fields
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.core.values.text import sanitize
from holdfast.outbound.breaker import CircuitBreaker, Permit, Result
from holdfast.outbound.budget import RetryBudget
from holdfast.outbound.failure_classification import describe_error
from holdfast.outbound.response import ENCODINGS, Response
from holdfast.outbound.retry import DEFAULT_POLICY, RetryRunner
from holdfast.outbound.retry_state import Attempt

log = get_logger("holdfast.client")

Step = Any
Steps = Generator[Step, Any, "Response"]

FORWARD_HEADERS: Mapping[str, str] = {"request_id": "x-request-id"}
_USER_HEADER = "x-user-id"
MAX_RESPONSE = 10 * 1024 * 1024

_SAFE = frozenset({"GET", "HEAD", "OPTIONS", "QUERY"})
_NO_RETRY = RetryPolicy.none()
_EXCERPT = 2_000


class Availability(StrEnum):
    """Whether a service is available; true only for `AVAILABLE`.

    Retriable: it responds with 408, 425, 429 or 5xx. Unavailable: no response, or its circuit is open.
    """

    AVAILABLE = "available"
    RETRIABLE = "retriable"
    UNAVAILABLE = "unavailable"

    def __bool__(self) -> bool:
        return self is Availability.AVAILABLE


class CallMeter(Protocol):
    """Counts attempts of calls; `hf.meter` is one."""

    def called(self, service: str, operation: str, outcome: str, seconds: float) -> None: ...


class CallOptions(TypedDict, total=False):
    """The keyword options of one call; see `ServiceClient`."""

    params: Mapping[str, str | int | float | bool | None] | None
    json: object
    content: bytes | None
    headers: Mapping[str, str] | None
    idempotency_key: str | None
    user: str | None
    timeout: Duration | None
    deadline: Duration | None
    policy: RetryPolicy | None
    operation: str | None


class ServiceOptions(TypedDict, total=False):
    """The keyword options of `ServiceClient`."""

    name: str | None
    token: str | Callable[[], str] | Callable[[], Awaitable[str]] | None
    timeout: Duration
    connect_timeout: Duration
    policy: RetryPolicy
    budget: RetryBudget | bool
    breaker: CircuitBreaker | None
    headers: Mapping[str, str] | None
    forward_headers: Mapping[str, str]
    key_header: str
    max_connections: int
    max_keepalive: int
    max_response: int
    verify: SSLContext | bool
    transport: Any
    meter: CallMeter | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceCall:
    """One call, the same in all its attempts."""

    method: str
    path: str
    params: Mapping[str, object] | None
    content: bytes | None
    headers: Mapping[str, str]
    key: str | None
    conflict_ok: bool
    timeout: float
    operation: str
    metered_as: str
    fields: Mapping[str, object]


class Transport(Protocol):
    """Runs the steps of an attempt. Each method returns a value (blocking) or an awaitable (async)."""

    def token(self, seconds: float) -> Step: ...
    def admit(self, breaker: CircuitBreaker) -> Step: ...
    def settle(self, breaker: CircuitBreaker, permit: Permit, result: Result, why: str) -> Step: ...
    def exchange(self, call: ServiceCall, headers: Mapping[str, str], seconds: float) -> Step: ...


class Service:
    """The configuration of one service: address, headers, limits and timeouts."""

    def __init__(
        self,
        base_url: str,
        *,
        name: str | None = None,
        token: str | Callable[[], str] | Callable[[], Awaitable[str]] | None = None,
        timeout: Duration = "10s",
        connect_timeout: Duration = "3s",
        policy: RetryPolicy = DEFAULT_POLICY,
        budget: RetryBudget | bool = True,
        breaker: CircuitBreaker | None = None,
        headers: Mapping[str, str] | None = None,
        forward_headers: Mapping[str, str] = FORWARD_HEADERS,
        key_header: str = "idempotency-key",
        max_connections: int = 100,
        max_keepalive: int = 20,
        max_response: int = MAX_RESPONSE,
        verify: SSLContext | bool = True,
        transport: Any = None,
        meter: CallMeter | None = None,
    ) -> None:
        try:
            import httpx2
        except ImportError as error:
            raise ConfigurationError(
                "a service client needs an HTTP client; run `pip install 'holdfast[http]'`"
            ) from error
        url = httpx2.URL(base_url)
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
            raise ConfigurationError(
                f"base_url for {url.host or 'a service client'} must be http:// or https:// with a host, and without "
                "user, password, query or fragment; give credentials as token="
            )
        self.base_url, self.name = base_url, name or url.host
        self.given_token, self.headers, self.forward_headers, self.key_header = (
            token,
            dict(headers or {}),
            forward_headers,
            key_header,
        )
        self.timeout = to_timedelta(timeout, name="timeout").total_seconds()
        self.connect_timeout = to_timedelta(connect_timeout, name="connect_timeout").total_seconds()
        self.policy, self.breaker, self.max_response, self.meter = policy, breaker, max_response, meter
        self.budget = (RetryBudget() if budget else None) if isinstance(budget, bool) else budget
        self.http: dict[str, Any] = {
            "base_url": base_url,
            "limits": httpx2.Limits(max_connections=max_connections, max_keepalive_connections=max_keepalive),
            "headers": {"accept-encoding": ", ".join(ENCODINGS)},
            "verify": verify,
            "transport": transport,
            # A cookie from one caller's response must not be sent with another caller's request.
            "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        }

    def phases(self, seconds: float) -> Any:
        """Returns the timeouts of each phase; the whole exchange also has a limit of `seconds`."""
        import httpx2

        return httpx2.Timeout(seconds, connect=min(self.connect_timeout, seconds))

    def call(self, method: str, path: str, conflict_ok: bool, options: CallOptions) -> tuple[ServiceCall, RetryRunner]:
        """Builds a call and its retries. A method that changes data is retried only with an idempotency key."""
        if "://" in path.partition("?")[0] or path.startswith("//"):
            raise ConfigurationError(
                f"path {path!r} is not a path of {self.name}, and the token would be sent to another host; give a path without a host"
            )
        method, key = method.upper(), options.get("idempotency_key")
        ids = dict(correlation())
        ids.setdefault("request_id", str(uuid4()))
        user = options.get("user")
        if user is not None:
            ids["user_id"] = _checked("user", user)
        forwarded = {header: ids.get(name, "") for name, header in self.forward_headers.items()}
        if user is not None:
            forwarded[self.forward_headers.get("user_id", _USER_HEADER)] = ids["user_id"]
        headers = self.headers | {header: id for header, id in forwarded.items() if id and fits_header(id)}
        content = options.get("content")
        if "json" in options:
            content = to_json(options["json"])
            headers["content-type"] = "application/json"
        if key is not None:
            headers[self.key_header] = check_key(key)
        timeout, deadline = options.get("timeout"), options.get("deadline")
        shown = path.partition("?")[0]
        named = options.get("operation")
        operation = f"{method} {shown}" if named is None else _checked("operation", named)
        fields = log_fields(ids) | {"service": self.name, "http_method": method, "path": shown}
        call = ServiceCall(
            method=method,
            path=path,
            params=options.get("params"),
            content=content,
            headers=_sendable(headers | dict(options.get("headers") or {})),
            key=key,
            conflict_ok=conflict_ok,
            timeout=self.timeout if timeout is None else to_timedelta(timeout, name="timeout").total_seconds(),
            operation=operation,
            metered_as=named or method,
            fields=fields,
        )
        repeatable = method in _SAFE or key is not None
        retry_runner = RetryRunner(
            operation,
            policy=(options.get("policy") or self.policy) if repeatable else _NO_RETRY,
            timeout=None,
            deadline=deadline,
            idempotency_key=key,
            log_fields=fields,
            budget=self.budget,
            own=True,  # the exchange has its own timeout, so that a timeout counts as a failure of the service
        )
        return call, retry_runner

    def attempt(self, transport: Transport, call: ServiceCall, attempt: Attempt) -> Steps:
        """Makes one attempt. Returns the response, or raises the failure."""
        steps = self._attempt(transport, call, attempt)
        return steps if self.meter is None else _metered(self.meter, self.name, call, steps)

    def _attempt(self, transport: Transport, call: ServiceCall, attempt: Attempt) -> Steps:
        headers = dict(call.headers)
        token = yield transport.token(_exchange_seconds(call.timeout, attempt, None))
        if token is not None:
            if not (token and fits_header(token)):
                raise TerminalError(
                    f"the token for {self.name} is empty or not printable ASCII text; give it without spaces or line breaks "
                    "around it"
                )
            headers["authorization"] = f"Bearer {token}"
        permit = None
        if self.breaker is not None:
            permit = yield transport.admit(self.breaker)
        began = time.monotonic()
        try:
            answer = yield transport.exchange(call, headers, _exchange_seconds(call.timeout, attempt, permit))
            self._check(call, answer)
        except BaseException as error:
            if self.breaker is not None and permit is not None:
                opened = yield transport.settle(
                    self.breaker, permit, self.breaker.classify_failure(error), describe_error(error)
                )
                if opened is not None:
                    raise opened from error
            raise
        if self.breaker is not None and permit is not None:
            yield transport.settle(self.breaker, permit, Result.SUCCEEDED, "")
        known = dict(call.fields) | {
            "operation": call.operation,
            "http_status": answer.status,
            "latency_ms": round((time.monotonic() - began) * 1000, 1),
            "attempt": attempt.number,
            "max_attempts": attempt.max_attempts,
        }
        log.info("call completed", **known | ({} if call.key is None else {"idempotency_key": call.key}))
        return answer  # type: ignore[no-any-return]

    def probe(self, transport: Transport, path: str) -> Generator[Step, Any, Availability]:
        """Makes one request without retries and returns the availability of the service. A failure of the call is not raised."""
        call, _ = self.call("GET", path, False, {})
        try:
            yield from self.attempt(transport, call, Attempt())
        except CircuitOpen:
            return Availability.UNAVAILABLE
        except Exception as error:  # noqa: BLE001
            if carried_status(error) is None:
                return Availability.UNAVAILABLE
            return Availability.RETRIABLE if classify(error).kind is VerdictKind.RETRY else Availability.AVAILABLE
        return Availability.AVAILABLE

    def _check(self, call: ServiceCall, answer: Response) -> None:
        after = answer.headers.get("retry-after")
        if verdict_for(answer.status, after, datetime.now(UTC), conflict_ok=call.conflict_ok) is None:
            return
        headers = {
            name: answer.headers[name.lower()] for name in ("Retry-After", "Date") if name.lower() in answer.headers
        }
        excerpt = sanitize(answer.body[: 4 * _EXCERPT].decode("utf-8", "replace"), _EXCERPT)
        raise ServiceRefused(self.name, call.method, str(call.fields["path"]), answer.status, headers, excerpt)


def request_of(call: ServiceCall, headers: Mapping[str, str]) -> dict[str, Any]:
    """Returns the arguments for the HTTP library."""
    return {
        "method": call.method,
        "url": call.path,
        "params": call.params,
        "content": call.content,
        "headers": headers,
    }


def _metered(meter: CallMeter, service: str, call: ServiceCall, steps: Steps) -> Steps:
    """Counts an attempt with its duration when it ends."""
    began, outcome = time.monotonic(), "success"
    try:
        return (yield from steps)
    except BaseException as error:
        outcome = _outcome(error)
        raise
    finally:
        # Without the path, which may contain ids: each value is a time series.
        meter.called(service, call.metered_as, outcome, time.monotonic() - began)


def _outcome(error: BaseException) -> str:
    # A failure that opens the circuit is the cause of the error.
    error = (error.__cause__ or error) if isinstance(error, CircuitOpen) else error
    match error:
        case CircuitOpen():
            return "circuit_open"
        case ServiceRefused():
            return "server_error" if error.status >= 500 else "client_error"
        case Exception():
            return "no_response"
        case _:
            return "cancelled"


def _exchange_seconds(timeout: float, attempt: Attempt, permit: Permit | None) -> float:
    """Seconds for an exchange: the shortest of its timeout, the deadline of the call and the deadline of the probe."""
    limits = (timeout, attempt.remaining, None if permit is None else permit.remaining)
    return min(limit for limit in limits if limit is not None)


def _sendable(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns headers with lower-case names and checked values."""
    return {name.lower(): _checked(f"header {name}", value) for name, value in headers.items()}


def _checked(what: str, value: str) -> str:
    """Checks a header value. It may be a secret, so the error does not contain it."""
    if not fits_header(value):
        raise ConfigurationError(
            f"{what} is not printable ASCII text, or has spaces or line breaks around it; correct it"
        )
    return value
