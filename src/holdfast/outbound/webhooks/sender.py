"""Posts one request to a checked address, with limits on time and size, without redirects."""

import asyncio
import time
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.duration import format_duration, to_timedelta
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.outbound.webhooks.ssrf import Resolver, authority_of, check_networks, check_url, host_of

try:
    import httpcore2 as http
except ImportError:  # only needed to send webhooks
    if not TYPE_CHECKING:
        http = None

MOST_BODY = 16_384
_BODY_SECONDS = 1.0
_EXCERPT = 500
_KEPT_HEADERS = (b"retry-after", b"date")
_REDACTED = "[redacted]"


@dataclass(frozen=True, slots=True)
class WebhookResponse:
    """The response of a receiver. `headers` has Retry-After and Date; `excerpt` is short and printable."""

    status: int
    latency: float
    excerpt: str
    headers: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, object]:
        """Returns the detail for the run record."""
        return {"status": self.status, "latency_ms": round(self.latency * 1000, 1), "excerpt": self.excerpt}


class WebhookSender:
    """Posts to external servers. Every request opens a new connection to a checked address.

    Reused connections would save a handshake, but an attempt fails whenever the server closes one first.
    """

    def __init__(self, options: WebhookOptions) -> None:
        if http is None:
            raise ConfigurationError("sending webhooks needs an HTTP client; run `pip install 'holdfast[http]'`")
        self._options = options
        self._networks = check_networks(options.allow_networks)
        self._resolver = Resolver(self._networks)
        self._connect_seconds = to_timedelta(options.connect_timeout).total_seconds()
        self._pool: AbstractAsyncContextManager[Any] = http.AsyncConnectionPool(
            # Created once; otherwise the HTTP library reads all certificates for each connection.
            ssl_context=options.ssl_context or http.default_ssl_context(),
            max_connections=None,
            max_keepalive_connections=0,
            network_backend=_CheckedBackend(self._resolver),
        )

    async def post(
        self, url: str, headers: Mapping[str, str], body: bytes, *, within: float, secret: Iterable[str] = ()
    ) -> WebhookResponse:
        """Returns the response, or raises `TimeoutError`, `ConnectionError` or `AddressRefused`.

        `within` is in seconds and ends with the response headers, because the status decides. Then the start of the body
        is read for at most one second. The words in `secret` are removed from the excerpt.
        """
        check_url(url, allow_http=self._options.allow_http, allowed=self._networks)
        host, started = host_of(url), time.monotonic()
        try:
            async with asyncio.timeout(within):
                response = await self._send(url, headers, body)
        except (TimeoutError, http.TimeoutException) as error:
            limit = format_duration(to_timedelta(round(time.monotonic() - started, 3)))
            raise TimeoutError(f"{host} did not answer within {limit}") from error
        except (http.NetworkError, http.ProtocolError) as error:
            why = excerpt_of(str(error).encode(), secret) or type(error).__name__
            raise ConnectionError(f"{host} was not reached: {why}") from error
        latency = time.monotonic() - started
        try:
            read = await _read_start(response)
        finally:
            await response.aclose()
        kept = {
            name.decode("ascii").lower(): value.decode("latin-1")
            for name, value in response.headers
            if name.lower() in _KEPT_HEADERS
        }
        return WebhookResponse(response.status, latency, excerpt_of(read, secret), kept)

    async def _send(self, url: str, headers: Mapping[str, str], body: bytes) -> Any:
        """Sends the request; returns the response before its body is read."""
        request = http.Request(
            "POST",
            url,
            headers=[("host", authority_of(url)), *headers.items(), ("connection", "close")],
            content=body,
            extensions={"timeout": {"connect": self._connect_seconds}},
        )
        return await self._pool.handle_async_request(request)  # type: ignore[attr-defined]

    async def close(self) -> None:
        """Closes the connections."""
        await self._pool.__aexit__(None, None, None)
        self._resolver.close()


async def _read_start(response: Any) -> bytes:
    """Reads the first bytes of a body; a slow, endless or interrupted rest is ignored."""
    read = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in response.aiter_stream():
                read += chunk
                if len(read) >= MOST_BODY:
                    break
    except (TimeoutError, http.NetworkError, http.ProtocolError):
        pass
    return bytes(read[:MOST_BODY])


def excerpt_of(body: bytes, secret: Iterable[str] = ()) -> str:
    """Returns the start of a body as one printable line. The body is untrusted."""
    text = body[: 4 * _EXCERPT].decode("utf-8", "backslashreplace")
    for word in secret:
        if word:
            text = text.replace(word, _REDACTED)
    line = "".join(map(_printable, text))
    return line if len(line) <= _EXCERPT else line[: _EXCERPT - 1] + "…"


def _printable(character: str) -> str:
    if character == '"':
        return "'"  # the excerpt is quoted in errors
    if unicodedata.category(character)[0] in "CZ" and character != " ":
        return character.encode("unicode_escape").decode()
    return character


class _CheckedBackend(http.AsyncNetworkBackend if http is not None else object):  # type: ignore[misc]
    """Connects only to checked addresses: a second DNS lookup could return others.

    TLS uses the host name, so certificates are verified against the name and not the address.
    """

    def __init__(self, resolver: Resolver) -> None:
        from holdfast.outbound.transport import ClosingBackend

        self._resolver = resolver
        self._tcp = ClosingBackend(http.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Any:
        """Connects to the first address that accepts a connection."""
        async with asyncio.timeout(timeout):
            addresses = await self._resolver.addresses(host, port)
        for address in addresses[:-1]:
            try:
                return await self._tcp.connect_tcp(address, port, timeout, local_address, socket_options)
            except (http.ConnectError, http.ConnectTimeout):
                continue
        return await self._tcp.connect_tcp(addresses[-1], port, timeout, local_address, socket_options)
