"""Request ids: an ASGI middleware that correlates everything one request does."""

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

# Any client can send it, and it is written to logs and headers.
_GIVEN = re.compile(rb"[\w.:/+=@-]{1,128}", re.ASCII)


class RequestIdMiddleware:
    """Adds the request's id to everything it publishes, logs and changes, and to the response.

    The id is the current one, the `X-Request-ID` of the request, or a new one; with `trust=False` the header is ignored. A
    `traceparent` of the request is passed on too.

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

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), (self._header, ids["request_id"].encode())]
                message = {**message, "headers": headers}
            await send(message)

        with correlate(**ids), bound_contextvars(**log_fields(ids)):
            await self._app(scope, receive, send_with_id)

    def _id(self, given: bytes | None) -> str:
        if outer := correlation().get("request_id"):
            return outer
        if self._trust and given is not None and _GIVEN.fullmatch(given):
            return given.decode()
        return secrets.token_hex(16)
