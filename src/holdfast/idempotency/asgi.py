"""Idempotency for ASGI applications: FastAPI, Starlette, Django, Litestar, Quart."""

import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar
from urllib.parse import quote

from holdfast.core.errors import KeyRequired
from holdfast.core.telemetry.correlation import correlate
from holdfast.idempotency.capture import CaptureAction, ResponseCapture
from holdfast.idempotency.engine import BaseMiddleware, IdempotencyEngine
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import Flow, run_flow
from holdfast.idempotency.request import Request
from holdfast.stores.integrations.idempotency import Reservation, StoredResponse

T = TypeVar("T")

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

STATE = "idempotency"
# These extensions bypass the middleware, which could then not store the body.
_BYPASSING_EXTENSIONS = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})


class IdempotencyMiddleware(BaseMiddleware[Application]):
    """Runs each request with an `Idempotency-Key` once, and replays its stored response to duplicates.

    `scope(request)` returns the owner of the key, a tenant or a user; it has no default, and may be async. With `hf` the
    records are in its store, with `records=RedisRecords(url)` in Redis. `required` rejects requests without a key. The
    other options are those of `holdfast.idempotency.engine.IdempotencySettings`.

    The scope must be an identity that your authentication has verified, never a header that a client can set. A replayed
    response is sent without calling your application, so the application's own checks do not run again.

    def user_id(request):
        return sessions.user_of(request.headers.get("authorization"))  # verifies the token

    api.add_middleware(IdempotencyMiddleware, hf=hf, scope=user_id)
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        engine = self._engine
        if scope["type"] != "http" or scope["method"] not in engine.options.methods:
            await self.app(scope, receive, send)
            return
        request, given = _read(scope, engine.options.header)
        key = engine.key_of(given)
        if isinstance(key, StoredResponse):
            await _send(key, send)
        elif key is not None:
            await self._serve_key(scope, receive, send, request, key)
        elif self._required(request) if callable(self._required) else self._required:
            await _send(engine.missing(), send)
        else:
            try:
                await self.app(_with_key(scope, IdempotencyKey(engine, None)), receive, send)
            except KeyRequired:
                await _send(engine.missing(), send)

    async def _serve_key(self, scope: Scope, receive: Receive, send: Send, request: Request, key: str) -> None:
        engine = self._engine
        body = await _body(receive, engine.options.max_body)
        if body is None:
            return  # the client disconnected before its request was complete
        if len(body) > engine.options.max_body:
            await _send(engine.too_large(), send)
            return
        owner = self._scope_of(request)
        reservation = engine.reservation(request, await owner if inspect.isawaitable(owner) else owner, key, body)
        if isinstance(reservation, StoredResponse):
            await _send(reservation, send)
            return
        response = await run_flow(engine.admit(reservation), engine.records)
        if response is not None:
            await _send(response, send)
            return
        await _Exchange(engine, reservation, send).serve(self.app, scope, _replay_body(body, receive))


class _Exchange:
    """One run of the application: feeds its response to the capture, and sends what the capture decides."""

    def __init__(self, engine: IdempotencyEngine, reservation: Reservation, send: Send) -> None:
        self._engine, self._reservation, self._send = engine, reservation, send
        self._key = IdempotencyKey(engine, reservation)
        self._capture = ResponseCapture(engine, self._key, reservation)
        self._start: Message = {}

    async def serve(self, app: Application, scope: Scope, receive: Receive) -> None:
        try:
            with correlate(idempotency_key=self._reservation.key):
                await app(_with_key(scope, self._key), receive, self._on_message)
        except Exception as error:
            replacement = await self._run(self._capture.fail(error))
            if replacement is None:
                raise
            await self._send_replacement(replacement)
        finally:
            self._engine.renewal.end(self._reservation)
        if not self._capture.is_sent:
            await self._settle(more=False, has_returned=True)

    async def _on_message(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start":
                self._start = message
                headers = (
                    (name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())
                )
                self._capture.start(message["status"], headers)
            case "http.response.body":
                more = message.get("more_body", False)
                match self._capture.write(message.get("body", b""), more=more):
                    case CaptureAction.SETTLE:
                        await self._settle(more=more, has_returned=False)
                    case CaptureAction.FORWARD:
                        await self._send(message)
            case _:
                await self._send(message)

    async def _settle(self, *, more: bool, has_returned: bool) -> None:
        if not await self._run(self._capture.settle(has_returned=has_returned)):
            return
        if self._capture.replacement is not None:
            await self._send_replacement(self._capture.replacement)
        elif self._capture.is_whole or not has_returned:  # else the client left before the end
            body = self._capture.forward(more=more)
            await self._send(self._start)
            await self._send({"type": "http.response.body", "body": body, "more_body": more})

    async def _send_replacement(self, response: StoredResponse) -> None:
        self._capture.forward(more=False)
        await _send(response, self._send)

    async def _run(self, flow: Flow[T]) -> T:
        return await run_flow(flow, self._engine.records)


def _read(scope: Scope, header: str) -> tuple[Request, list[str]]:
    headers: dict[str, str] = {}
    given = []
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        lower = name.decode("latin-1").lower()
        headers[lower] = f"{headers[lower]}, {text}" if lower in headers else text
        if lower == header:
            given.append(text)
    query = scope.get("query_string", b"").decode("latin-1")
    return Request(scope["method"], quote(scope["path"]), query, headers, scope), given


def _with_key(scope: Scope, key: IdempotencyKey) -> Scope:
    extensions = {
        name: value for name, value in (scope.get("extensions") or {}).items() if name not in _BYPASSING_EXTENSIONS
    }
    # The state of the request, not a copy: an outer middleware reads what a handler put there.
    scope.setdefault("state", {})[STATE] = key
    return {**scope, "extensions": extensions}


async def _body(receive: Receive, limit: int) -> bytes | None:
    """The whole body, or a part of it that exceeds the limit; None if the client disconnected."""
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit or not message.get("more_body", False):
            return b"".join(chunks)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Returns the body that was read, then the messages of the server, such as a disconnect."""
    is_replayed = False

    async def replay() -> Message:
        nonlocal is_replayed
        if is_replayed:
            return await receive()
        is_replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _send(response: StoredResponse, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body or b"", "more_body": False})
