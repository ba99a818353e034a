"""HTTP clients for other services, with tokens, correlation ids, timeouts, retries, circuit breakers and logs."""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Coroutine, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeVar, Unpack, cast, overload

from holdfast.core.drive import drive, drive_async
from holdfast.core.errors import CircuitOpen, TerminalError
from holdfast.outbound.breaker import CircuitBreaker, Permit, Result
from holdfast.outbound.response import Response, ResponseBody, parsed
from holdfast.outbound.retry_state import Attempt
from holdfast.outbound.service import (
    Availability,
    CallOptions,
    Service,
    ServiceCall,
    ServiceOptions,
    request_of,
)

__all__ = ["Availability", "Response", "ServiceClient", "SyncServiceClient"]

T = TypeVar("T")

_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")


class AsyncVerb(Protocol):
    """`client.get`, `client.post` and so on: `request` with a fixed method."""

    @overload
    def __call__(
        self, path: str, *, returns: type[T], conflict_ok: Literal[True], **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, T | None]: ...
    @overload
    def __call__(
        self, path: str, *, returns: type[T], conflict_ok: bool = False, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(
        self, path: str, *, returns: None = None, conflict_ok: bool = False, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Response]: ...
    @overload
    def __call__(
        self, path: str, *, returns: Any, conflict_ok: bool = False, **options: Unpack[CallOptions]
    ) -> Coroutine[Any, Any, Any]: ...


class SyncVerb(Protocol):
    """`AsyncVerb`, blocking."""

    @overload
    def __call__(
        self, path: str, *, returns: type[T], conflict_ok: Literal[True], **options: Unpack[CallOptions]
    ) -> T | None: ...
    @overload
    def __call__(
        self, path: str, *, returns: type[T], conflict_ok: bool = False, **options: Unpack[CallOptions]
    ) -> T: ...
    @overload
    def __call__(
        self, path: str, *, returns: None = None, conflict_ok: bool = False, **options: Unpack[CallOptions]
    ) -> Response: ...
    @overload
    def __call__(
        self, path: str, *, returns: Any, conflict_ok: bool = False, **options: Unpack[CallOptions]
    ) -> Any: ...


class ServiceClient:
    """Calls one service; every call has a timeout, retries like `with_retry`, and logs one line per attempt.

    async with ServiceClient("https://billing.example/v1", token=fetch_token) as billing:
        invoice = await billing.get("/invoices/7", returns=Invoice)
        await billing.post("/invoices", json=draft, idempotency_key="order:7:invoice:v1", conflict_ok=True)

    `token` is sent as a bearer token: a value, or a function (plain or async) that is called before each attempt.
    `forward_headers` maps ids of the current correlation to headers, by default the request id, which is generated if
    there is none. The idempotency key is the same in all attempts; a method that changes data is retried only with a key.
    `returns` is any type that pydantic can parse. With `conflict_ok` a 409 means that the resource already exists: a
    success, and None if a type was given. All other responses raise `ServiceRefused`. `operation` names a call in the
    logs, by default its method and path; a name without ids groups calls. With `meter=hf.meter` attempts are counted in
    the app's metrics, by service and operation.

    `timeout` limits a whole attempt and closes its connection. `verify` takes an SSLContext for a private CA or a client
    certificate; `transport` is one of httpx2's, for tests. `budget` (on by default) limits the share of retries.
    `breaker` guards each attempt. A client belongs to one event loop, and needs `holdfast[http]`.
    """

    def __init__(self, base_url: str, **options: Unpack[ServiceOptions]) -> None:
        self._service = Service(base_url, **options)
        self._transport = _AsyncTransport(self._service)
        self.get, self.head, self.post, self.put, self.patch, self.delete = (
            cast(AsyncVerb, partial(self.request, method)) for method in _METHODS
        )

    def __repr__(self) -> str:
        return f"<ServiceClient {self._service.base_url}>"

    async def request(
        self, method: str, path: str, *, returns: Any = None, conflict_ok: bool = False, **options: Unpack[CallOptions]
    ) -> Any:
        """Makes one call. Returns a `Response`, or a value of the type `returns`."""
        call, retry_runner = self._service.call(method, path, conflict_ok, options)

        async def attempt(attempt: Attempt) -> Response:
            return await drive_async(self._service.attempt(self._transport, call, attempt), _awaitable, BaseException)

        return parsed(await retry_runner.run(attempt, True), returns)

    async def probe(self, path: str = "/") -> Availability:
        """Makes one request and returns whether the service is available, retriable (408, 425, 429, 5xx) or unavailable."""
        return await drive_async(self._service.probe(self._transport, path), _awaitable, BaseException)

    async def close(self) -> None:
        """Closes the connections; they open again when needed."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class SyncServiceClient:
    """`ServiceClient` for plain functions and threads: the same names, blocking; `token` must not be async."""

    def __init__(self, base_url: str, **options: Unpack[ServiceOptions]) -> None:
        self._service = Service(base_url, **options)
        self._transport = _SyncTransport(self._service)
        self.get, self.head, self.post, self.put, self.patch, self.delete = (
            cast(SyncVerb, partial(self.request, method)) for method in _METHODS
        )

    def __repr__(self) -> str:
        return f"<SyncServiceClient {self._service.base_url}>"

    def request(
        self, method: str, path: str, *, returns: Any = None, conflict_ok: bool = False, **options: Unpack[CallOptions]
    ) -> Any:
        """Makes one call. Returns a `Response`, or a value of the type `returns`."""
        call, retry_runner = self._service.call(method, path, conflict_ok, options)

        def attempt(attempt: Attempt) -> Response:
            return drive(self._service.attempt(self._transport, call, attempt), _performed)

        return parsed(retry_runner.run_sync(attempt, True), returns)

    def probe(self, path: str = "/") -> Availability:
        """`ServiceClient.probe`, blocking."""
        return drive(self._service.probe(self._transport, path), _performed)

    def close(self) -> None:
        """Closes the connections; they open again when needed."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _AsyncTransport:
    """Runs the steps of a call as awaitables."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client: Any = None

    async def token(self, seconds: float) -> str | None:
        given = self._service.given_token
        if not callable(given):
            return given
        limit = asyncio.timeout(seconds)
        try:
            async with limit:
                token = given()
                return await token if inspect.isawaitable(token) else token
        except TimeoutError:
            if not limit.expired():
                raise
            raise TimeoutError(f"the token for {self._service.name} was not available within {seconds:g} s") from None

    def admit(self, breaker: CircuitBreaker) -> Awaitable[Permit]:
        return breaker.admit()

    def settle(
        self, breaker: CircuitBreaker, permit: Permit, result: Result, why: str
    ) -> Awaitable[CircuitOpen | None]:
        return breaker.settle(permit, result, why)

    async def exchange(self, call: ServiceCall, headers: Mapping[str, str], seconds: float) -> Response:
        client, service = self._opened(), self._service
        request = client.build_request(**request_of(call, headers), timeout=service.phases(seconds))
        try:
            async with asyncio.timeout(seconds):
                response = await client.send(request, stream=True)
                try:
                    body = ResponseBody(service.name, call.method, service.max_response, response.headers)
                    async for chunk in response.aiter_bytes():
                        body.add(chunk)
                finally:
                    await response.aclose()
        except TimeoutError:
            raise TimeoutError(f"{service.name} did not answer {call.method} within {seconds:g} s") from None
        return Response(response.status_code, dict(response.headers), body.content)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _opened(self) -> Any:
        if self._client is None:
            import httpx2

            from holdfast.outbound.transport import close_on_handshake_failure

            self._client = close_on_handshake_failure(httpx2.AsyncClient(**self._service.http))
        return self._client


class _SyncTransport:
    """Runs the steps of a call, blocking."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._client: Any = None
        self._opening = threading.Lock()

    def token(self, seconds: float) -> str | None:
        given = self._service.given_token
        token = given() if callable(given) else given
        if inspect.isawaitable(token):
            if inspect.iscoroutine(token):
                token.close()
            raise TerminalError("SyncServiceClient has an async token function; give it a synchronous one")
        return token

    def admit(self, breaker: CircuitBreaker) -> Permit:
        return breaker.sync.admit()

    def settle(self, breaker: CircuitBreaker, permit: Permit, result: Result, why: str) -> CircuitOpen | None:
        return breaker.sync.settle(permit, result, why)

    def exchange(self, call: ServiceCall, headers: Mapping[str, str], seconds: float) -> Response:
        from holdfast.outbound.transport import within

        client, service = self._opened(), self._service
        request = client.build_request(**request_of(call, headers), timeout=service.phases(seconds))
        with within(seconds):
            response = client.send(request, stream=True)
            try:
                body = ResponseBody(service.name, call.method, service.max_response, response.headers)
                for chunk in response.iter_bytes():
                    body.add(chunk)
            finally:
                response.close()
        return Response(response.status_code, dict(response.headers), body.content)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _opened(self) -> Any:
        with self._opening:
            if self._client is None:
                import httpx2

                from holdfast.outbound.transport import with_deadline

                self._client = with_deadline(httpx2.Client(**self._service.http))
            return self._client


def _awaitable(step: Any) -> Awaitable[Any]:
    return step  # type: ignore[no-any-return]


def _performed(step: Any) -> Any:
    # A blocking step has already run, or raised, when it is yielded.
    return step
