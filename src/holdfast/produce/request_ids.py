"""Request ids: an ASGI middleware that ties everything one request does together."""

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from structlog.contextvars import bound_contextvars

from holdfast.core.telemetry.correlation import correlate, correlation
from holdfast.core.telemetry.log_fields import log_fields
from holdfast.core.telemetry.trace_context import TRACEPARENT, TRACESTATE, read_traceparent

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

# It comes from anybody and goes into logs and headers.
_GIVEN = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)


class RequestIdMiddleware:
    """What a request publishes, logs and does to others' work carries its id; the answer tells it.

    The id is the one in force, or the `X-Request-ID` that came with the request, or a new one; `trust=False` takes none
    that came. A `traceparent` that came along travels on, too.

    `api.add_middleware(RequestIdMiddleware)`
    """

    def __init__(self, app: Application, *, header: str = "x-request-id", trust: bool = True) -> None:
        self._app, self._header, self._trust = app, header.lower().encode("latin-1"), trust

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serves one request or connection."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        given: dict[bytes, bytes] = dict(scope["headers"])
        ids = {"request_id": self._id(given.get(self._header))}
        if read_traceparent(parent := given.get(TRACEPARENT.encode(), b"").decode("latin-1")) is not None:
            ids[TRACEPARENT] = parent
            if (state := given.get(TRACESTATE.encode(), b"").decode("latin-1")) and state.isascii():
                ids[TRACESTATE] = state[:512]

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start":
                told = [*message.get("headers", ()), (self._header, ids["request_id"].encode())]
                message = {**message, "headers": told}
            await send(message)

        with correlate(**ids), bound_contextvars(**log_fields(ids)):
            await self._app(scope, receive, tell)

    def _id(self, given: bytes | None) -> str:
        if outer := correlation().get("request_id"):
            return outer
        if self._trust and given is not None and _GIVEN.fullmatch(given):
            return given.decode()
        return secrets.token_hex(16)
