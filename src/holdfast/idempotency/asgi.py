"""Idempotency for ASGI applications: FastAPI, Starlette, Django, Litestar, Quart."""

import inspect
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeVar, Unpack
from urllib.parse import quote

from holdfast.core.errors import KeyRequired, ReservationLost, StoreError
from holdfast.core.telemetry.correlation import correlate
from holdfast.idempotency.gate import Chosen, Gate, Required, ScopeOf, open_gate, options, uncommitted, unknown
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import App, Flow, Records, carry_out
from holdfast.idempotency.request import Request
from holdfast.idempotency.response import in_place_of, kept_headers
from holdfast.stores.integrations.idempotency import Headers, Reservation, StoredResponse

T = TypeVar("T")

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

STATE = "idempotency"
# They send a body past the middleware, which could then not keep it.
_PAST_US = frozenset({"http.response.pathsend", "http.response.zerocopysend", "http.response.trailers"})


class IdempotencyMiddleware:
    """Carries out a request with an `Idempotency-Key` once, and answers its repetitions as the first time.

    `scope(request)` says whose key it is, a tenant or a user; it has no default, and may be async. `hf` keeps the
    records in its store, `records=RedisRecords(url)` in Redis. `required` refuses requests without a key. The other
    options are those of `holdfast.idempotency.gate.Chosen`.

    The scope must be an identity that your authentication has proved, never a header that a client can set. A replayed
    response is sent without calling your application: a check that your application makes itself does not run again.

    def user_id(request):
        return sessions.user_of(request.headers.get("authorization"))  # verifies the token

    api.add_middleware(IdempotencyMiddleware, hf=hf, scope=user_id)
    """

    def __init__(
        self,
        app: Application,
        hf: App | None = None,
        *,
        scope: ScopeOf,
        records: Records | None = None,
        required: Required = False,
        **chosen: Unpack[Chosen],
    ) -> None:
        self.app = app
        self._gate = open_gate(hf, records, scope, options(**chosen))
        self._scope_of, self._required = scope, required

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request."""
        gate = self._gate
        if scope["type"] != "http" or scope["method"] not in gate.options.methods:
            await self.app(scope, receive, send)
            return
        request, given = _read(scope, gate.options.header)
        key = gate.key_of(given)
        if isinstance(key, StoredResponse):
            await _send(key, send)
        elif key is not None:
            await self._guarded(scope, receive, send, request, key)
        elif self._required(request) if callable(self._required) else self._required:
            await _send(gate.missing(), send)
        else:
            try:
                await self.app(_with_key(scope, IdempotencyKey(gate, None)), receive, send)
            except KeyRequired:
                await _send(gate.missing(), send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send, request: Request, key: str) -> None:
        gate = self._gate
        body = await _body(receive, gate.options.max_body)
        if body is None:
            return  # the client is gone, and nothing was begun
        if len(body) > gate.options.max_body:
            await _send(gate.too_large(), send)
            return
        owner = self._scope_of(request)
        held = gate.hold(request, await owner if inspect.isawaitable(owner) else owner, key, body)
        if isinstance(held, StoredResponse):
            await _send(held, send)
            return
        answer = await carry_out(gate.admit(held), gate.records)
        if answer is not None:
            await _send(answer, send)
            return
        await _Run(gate, held, send).serve(self.app, scope, _again(body, receive))


class _Run:
    """One run of the application: holds its answer back until it is stored."""

    def __init__(self, gate: Gate, held: Reservation, send: Send) -> None:
        self._gate, self._held, self._out = gate, held, send
        self._key = IdempotencyKey(gate, held)
        self._start: Message | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._whole = False
        self._sent = False
        self._flowing = False
        self._pending: StoredResponse | None = None

    async def serve(self, app: Application, scope: Scope, receive: Receive) -> None:
        try:
            with correlate(idempotency_key=self._held.key):
                await app(_with_key(scope, self._key), receive, self._send)
        except ReservationLost:
            if self._sent or not self._key.lost:
                raise
            await self._answer(await self._do(self._gate.lost(self._held)))
        except Exception:
            # After an answer that was stored there is nothing to let go of, and this changes nothing.
            await self._do(self._gate.abandon(self._held))
            raise
        finally:
            self._gate.renewal.end(self._held)
        if not self._sent:
            await self._at_the_end()

    async def _at_the_end(self) -> None:
        """The application returned: what ends with the request, a session that commits for one, has ended.

        Its answer is stored now and not when it was given: a record must not be there before the effect is, and SQLite
        could not write one while the application's transaction is open.
        """
        if self._start is None:
            await self._do(self._gate.abandon(self._held))
            return
        stored = self._pending or (self._key.completed if self._key.stands_for(self._status) else None)
        if stored is None and self._whole:
            await self._finish(more=False, whole=True)
            return
        if stored is None:
            # The client left, and the framework stopped the answer, not the effect: it must not happen again.
            await self._keep(None)
            return
        confirmed = await self._confirmed(stored)
        if confirmed is None:
            await self._do(self._gate.abandon(self._held))
        await self._answer(confirmed or uncommitted())

    async def _send(self, message: Message) -> None:
        match message["type"]:
            case "http.response.start":
                self._start, self._size, self._whole = message, 0, False
                self._chunks.clear()
            case "http.response.body":
                await self._take(message.get("body", b""), more=message.get("more_body", False))
            case _:
                await self._out(message)

    async def _take(self, chunk: bytes, *, more: bool) -> None:
        if self._flowing:
            await self._out({"type": "http.response.body", "body": chunk, "more_body": more})
        elif self._sent or self._whole or self._pending is not None:
            return  # it is all there, or another answer went out, or will, in the place of this one
        elif self._key.stands_for(self._status):
            if not more:
                await self._complete()
        else:
            self._chunks.append(chunk)
            self._size += len(chunk)
            if self._size > self._gate.options.max_response or self._events:
                await self._finish(more=more, whole=False)
            else:
                self._whole = not more

    async def _complete(self) -> None:
        """The application stored its answer in a transaction: it goes out once that is committed."""
        stored = self._key.completed
        assert stored is not None
        confirmed = await self._confirmed(stored)
        if confirmed is None:
            self._pending = stored  # a transaction that ends with the request is still open
        else:
            await self._answer(confirmed)

    async def _confirmed(self, stored: StoredResponse) -> StoredResponse | None:
        try:
            if not await self._is_committed():
                return None
        except StoreError:
            return unknown()
        return StoredResponse(stored.status, in_place_of(self._headers, stored), stored.body)

    async def _is_committed(self) -> bool:
        return await self._do(self._gate.committed(self._held))

    async def _finish(self, *, more: bool, whole: bool) -> None:
        """The application's answer is there, or is too long to wait for: it is stored, then sent."""
        body = b"".join(self._chunks)
        self._chunks.clear()
        if not await self._keep(body if whole else None):
            return
        self._sent, self._flowing = True, more
        await self._out(self._start or {})
        await self._out({"type": "http.response.body", "body": body, "more_body": more})

    async def _keep(self, body: bytes | None) -> bool:
        """Stores the application's answer; false when another one was sent in its place."""
        kept = StoredResponse(self._status, kept_headers(self._headers), body)
        answer = await self._do(self._gate.lost(self._held) if self._key.lost else self._gate.settle(self._held, kept))
        if answer is not None:
            await self._answer(answer)
        return answer is None

    async def _answer(self, answer: StoredResponse) -> None:
        self._sent = True
        await _send(answer, self._out)

    @property
    def _status(self) -> int:
        assert self._start is not None
        status: int = self._start["status"]
        return status

    @property
    def _headers(self) -> Headers:
        assert self._start is not None
        return tuple(
            (name.decode("latin-1"), value.decode("latin-1")) for name, value in self._start.get("headers", ())
        )

    @property
    def _events(self) -> bool:
        return any(name.lower() == "content-type" and "text/event-stream" in value for name, value in self._headers)

    async def _do(self, flow: Flow[T]) -> T:
        return await carry_out(flow, self._gate.records)


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
    extensions = {name: value for name, value in (scope.get("extensions") or {}).items() if name not in _PAST_US}
    # The request's own state and no copy: a middleware outside reads there what a handler has put in.
    scope.setdefault("state", {})[STATE] = key
    return {**scope, "extensions": extensions}


async def _body(receive: Receive, limit: int) -> bytes | None:
    """The whole body, or a little more than the limit of it; none when the client went away."""
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        if size > limit or not message.get("more_body", False):
            return b"".join(chunks)


def _again(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read once more, then whatever the server says: that the client is gone, for one."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _send(answer: StoredResponse, send: Send) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers]
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body or b"", "more_body": False})
