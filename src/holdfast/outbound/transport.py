"""Network backends for the HTTP library: a deadline for blocking exchanges, and sockets that close when TLS setup fails.

The HTTP client's timeouts apply to each read and write, so a server that sends a byte now and then never times out. With
`within`, every wait on a blocking socket ends at the deadline of the whole exchange, and the client closes the socket.

The HTTP library closes a socket after an error during the TLS handshake, but not after a timeout or a cancellation.
`close_on_handshake_failure` closes it in these cases too.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from ssl import SSLContext
from typing import TYPE_CHECKING, Any, TypeVar

import httpcore2

if TYPE_CHECKING:
    import httpx2

C = TypeVar("C", "httpx2.Client", "httpx2.AsyncClient")

_deadline: ContextVar[float | None] = ContextVar("holdfast_exchange_deadline", default=None)


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Limits all I/O of a client made by `with_deadline` inside the block to `seconds`."""
    token = _deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def with_deadline(client: "httpx2.Client") -> "httpx2.Client":
    """Makes a client observe the deadline that `within` sets."""
    return _wrap_backend(client, _DeadlineBackend)


def close_on_handshake_failure(client: "httpx2.AsyncClient") -> "httpx2.AsyncClient":
    """Makes a client close the socket when a TLS handshake times out or is cancelled."""
    return _wrap_backend(client, ClosingBackend)


def _wrap_backend(client: C, wrap: Callable[[Any], object]) -> C:
    # httpx has no public option for the network backend, so this sets a private attribute.
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        if pool is not None:
            pool._network_backend = wrap(pool._network_backend)
    return client


def _remaining(timeout: float | None, timeout_error: type[Exception]) -> float | None:
    deadline = _deadline.get()
    if deadline is None:
        return timeout
    left = deadline - time.monotonic()
    if left <= 0:
        raise timeout_error("the request and its response took too long")
    return left if timeout is None else min(timeout, left)


class _DeadlineStream(httpcore2.NetworkStream):
    def __init__(self, stream: httpcore2.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _remaining(timeout, httpcore2.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _remaining(timeout, httpcore2.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.NetworkStream:
        limit = _remaining(timeout, httpcore2.ConnectTimeout)
        return _DeadlineStream(self._stream.start_tls(ssl_context, server_hostname, limit))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _DeadlineBackend(httpcore2.NetworkBackend):
    def __init__(self, backend: httpcore2.NetworkBackend) -> None:
        self._backend = backend

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.NetworkStream:
        limit = _remaining(timeout, httpcore2.ConnectTimeout)
        return _DeadlineStream(self._backend.connect_tcp(host, port, limit, local_address, socket_options))

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore2.NetworkStream:
        limit = _remaining(timeout, httpcore2.ConnectTimeout)
        return _DeadlineStream(self._backend.connect_unix_socket(path, limit, socket_options))

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class ClosingBackend(httpcore2.AsyncNetworkBackend):
    """Wraps a backend and closes the socket of a TLS handshake that fails, times out or is cancelled."""

    def __init__(self, backend: httpcore2.AsyncNetworkBackend) -> None:
        self._backend = backend

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature is httpcore's
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _ClosingStream(await self._backend.connect_tcp(host, port, timeout, local_address, socket_options))

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,  # noqa: ASYNC109
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        return _ClosingStream(await self._backend.connect_unix_socket(path, timeout, socket_options))

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _ClosingStream(httpcore2.AsyncNetworkStream):
    def __init__(self, stream: httpcore2.AsyncNetworkStream) -> None:
        self._stream = stream

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109
        return await self._stream.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore2.AsyncNetworkStream:
        try:
            return await self._stream.start_tls(ssl_context, server_hostname, timeout)
        except BaseException:
            await self._stream.aclose()
            raise

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)
