"""Posts one event to its endpoint, and decides what the response means for the delivery and for the endpoint."""

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus

import orjson

from holdfast._log import get_logger
from holdfast._version import __version__
from holdfast.core.circuit import Result
from holdfast.core.errors import (
    AddressRefused,
    Cancel,
    ConfigurationError,
    Snooze,
    StoreUnavailable,
    TerminalError,
    WebhookRefused,
)
from holdfast.core.failures.http import parse_date, parse_retry_after
from holdfast.outbound.breaker import CircuitBreaker
from holdfast.outbound.circuits import CircuitStore
from holdfast.outbound.webhooks.concurrency_limiter import ConcurrencyLimiter
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.outbound.webhooks.sender import WebhookResponse, WebhookSender
from holdfast.outbound.webhooks.signature import sign
from holdfast.outbound.webhooks.ssrf import authority_of, path_of, query_of
from holdfast.stores.integrations.webhook import Endpoint

log = get_logger("holdfast.webhooks")

_AGENT = f"holdfast/{__version__}"
_PROBE_MARGIN = 2.0
_TOKEN_LENGTH = 12
# Claims skip a disabled endpoint, so this affects only deliveries that were claimed before it was disabled.
_DISABLED = timedelta(seconds=2)
# Responses of a working server that refuses this request, or asks to retry later.
_HEALTHY_STATUSES = frozenset({400, 408, 409, 413, 422, 425, 429})


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEvent:
    """The event to post. `id` is the message id: the same in every attempt and after a replay."""

    id: str
    type: str
    occurred_at: datetime
    payload: object
    tenant: str | None = None

    def body(self) -> bytes:
        """Returns the body; the same bytes in every attempt."""
        at = self.occurred_at.astimezone(UTC).isoformat().replace("+00:00", "Z")
        return orjson.dumps({"type": self.type, "timestamp": at, "data": self.payload})


def signed_headers(endpoint: Endpoint, event: WebhookEvent, body: bytes, now: float) -> dict[str, str]:
    """Returns the headers of one attempt, signed with the current time."""
    timestamp = int(now)
    return {
        "user-agent": _AGENT,
        **endpoint.headers,
        "content-type": "application/json",
        "content-length": str(len(body)),
        "webhook-id": event.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(endpoint.secrets, event.id, timestamp, body),
    }


async def post(sender: WebhookSender, endpoint: Endpoint, event: WebhookEvent, *, within: float) -> WebhookResponse:
    """Posts an event once, signed with the current time: receivers refuse old signatures."""
    body = event.body()
    headers = signed_headers(endpoint, event, body, time.time())
    sent = endpoint.headers.values()
    # A receiver may echo only the last word of `Bearer abc`. A long part of the path may be a token; a short one may be
    # any word of the response.
    path = (one for one in (path_of(endpoint.url), *path_of(endpoint.url).split("/")) if len(one) >= _TOKEN_LENGTH)
    known = (query_of(endpoint.url), *path, *sent, *(value.rpartition(" ")[2] for value in sent), *endpoint.secrets)
    return await sender.post(endpoint.url, headers, body, within=within, secret=known)


class WebhookDispatcher:
    """Delivers events. Each endpoint has its limiter and circuit.

    `disable` is called with an endpoint and a reason after the response 410 Gone.
    """

    def __init__(
        self,
        options: WebhookOptions,
        circuits: CircuitStore,
        disable: Callable[[Endpoint, str], Awaitable[None]],
    ) -> None:
        self._options, self._circuits, self._disable = options, circuits, disable
        self._sender: WebhookSender | None = None
        self._limiters: dict[str, ConcurrencyLimiter] = {}
        self._breakers: dict[str, CircuitBreaker] = {}

    def serve(self, endpoints: Iterable[Endpoint]) -> None:
        """Applies changed limits, and removes endpoints that no longer exist."""
        known = {endpoint.id: endpoint for endpoint in endpoints}
        for id in self._limiters.keys() - known.keys():
            del self._limiters[id]
            self._breakers.pop(id, None)
        for id, limiter in self._limiters.items():
            limiter.concurrency = known[id].request_limit

    async def deliver(
        self, endpoint: Endpoint, event: WebhookEvent, on_response: Callable[[WebhookResponse], None]
    ) -> None:
        """Posts an event. Returns if the endpoint accepted it, else raises the exception that decides about a retry.

        `on_response` is called with the response, if there is one. While the circuit is open every failure parks, so that no
        delivery uses up its attempts while the endpoint is down.
        """
        if endpoint.disabled_at is not None:
            raise Snooze(_DISABLED)
        if endpoint.tenant is not None and endpoint.tenant != event.tenant:
            # Published by a release without tenants.
            raise Cancel(f"endpoint {endpoint.id} belongs to tenant {endpoint.tenant}, this event to {event.tenant}")
        limiter = self._limiter(endpoint)
        if wait := limiter.enter():
            raise Snooze(wait)
        started = time.monotonic()
        try:
            await self._deliver_through_circuit(endpoint, event, limiter, on_response)
        finally:
            limiter.leave(time.monotonic() - started)

    async def _deliver_through_circuit(
        self,
        endpoint: Endpoint,
        event: WebhookEvent,
        limiter: ConcurrencyLimiter,
        on_response: Callable[[WebhookResponse], None],
    ) -> None:
        breaker = self._breaker(endpoint)
        permit = await breaker.admit()
        result, why = Result.ABANDONED, ""
        try:
            left = permit.remaining
            within = self._options.seconds if left is None else min(self._options.seconds, left)
            response = await self._post(endpoint, event, within)
            on_response(response)
            _log(endpoint, response)
            result, why = _classify_response(response)
            if result is Result.FAILED or not 200 <= response.status < 300:
                raise await self._refused(endpoint, limiter, response)
        except (OSError, WebhookRefused, AddressRefused, TerminalError) as error:
            if not isinstance(error, WebhookRefused):
                result, why = Result.FAILED, str(error)
            if (opened := await breaker.settle(permit, result, why)) is not None:
                raise opened from error
            raise
        except BaseException:
            await breaker.settle(permit, Result.ABANDONED)
            raise
        await breaker.settle(permit, result, why)

    async def _post(self, endpoint: Endpoint, event: WebhookEvent, within: float) -> WebhookResponse:
        if self._sender is None:
            self._sender = WebhookSender(self._options)
        try:
            return await post(self._sender, endpoint, event, within=within)
        except ConfigurationError as error:
            # It was added by a process that allows http; this worker does not.
            raise TerminalError(str(error)) from error

    async def _refused(
        self, endpoint: Endpoint, limiter: ConcurrencyLimiter, response: WebhookResponse
    ) -> WebhookRefused:
        host = authority_of(endpoint.url)
        if response.status == HTTPStatus.GONE:
            try:
                await self._disable(endpoint, f"{host} answered 410 Gone")
            except StoreUnavailable as error:
                log.warning("webhook endpoint disable failed", endpoint=endpoint.id, error=str(error))
        now = datetime.now(UTC)
        said = {"date": format_datetime(now, usegmt=True), **response.headers}
        if response.status == HTTPStatus.GONE:
            said.pop("retry-after", None)  # 410 is final
        if (wait := parse_retry_after(said.get("retry-after"), parse_date(said["date"]) or now)) is not None:
            # Retry-After applies to all deliveries of the endpoint.
            limiter.hold(wait.total_seconds())
        return WebhookRefused(host, response.status, _phrase(response.status), response.excerpt, said)

    def _limiter(self, endpoint: Endpoint) -> ConcurrencyLimiter:
        if endpoint.id not in self._limiters:
            self._limiters[endpoint.id] = ConcurrencyLimiter(endpoint.request_limit)
        return self._limiters[endpoint.id]

    def _breaker(self, endpoint: Endpoint) -> CircuitBreaker:
        if endpoint.id not in self._breakers:
            self._breakers[endpoint.id] = CircuitBreaker(
                endpoint.consumer,
                self._circuits,
                threshold=self._options.threshold,
                cooldown=self._options.cooldown,
                probe_timeout=self._options.seconds + _PROBE_MARGIN,
            )
        return self._breakers[endpoint.id]

    async def close(self) -> None:
        """Closes the connections."""
        if self._sender is not None:
            await self._sender.close()


def _classify_response(response: WebhookResponse) -> tuple[Result, str]:
    """Decides whether a response counts as a failure of the endpoint. Refusals such as 401 and 404 do."""
    well = 200 <= response.status < 300 or response.status in _HEALTHY_STATUSES or response.status == HTTPStatus.GONE
    if well:
        return Result.SUCCEEDED, ""
    return Result.FAILED, f"answered {response.status} {_phrase(response.status)}".rstrip()


def _log(endpoint: Endpoint, response: WebhookResponse) -> None:
    latency = round(response.latency * 1000, 1)
    known = {"endpoint": endpoint.id, "tenant": endpoint.tenant, "http_status": response.status, "latency_ms": latency}
    if 200 <= response.status < 300:
        log.debug("webhook response", **known)
    else:
        log.warning("webhook not accepted", **known)


def _phrase(status: int) -> str:
    return HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
