"""Idempotency for WSGI applications: Flask, Django, Pyramid, Bottle."""

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from holdfast.idempotency.capture import CaptureAction, ResponseCapture
from holdfast.idempotency.engine import BaseMiddleware, IdempotencyEngine, Required, ScopeOf
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.request import Request
from holdfast.idempotency.sync_adapter import SyncAdapter
from holdfast.stores.integrations.idempotency import StoredResponse

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

ENVIRON = "holdfast.idempotency"


class WsgiIdempotencyMiddleware(BaseMiddleware[Application]):
    """Runs each request with an `Idempotency-Key` once, and replays its stored response to duplicates.

    The same as the ASGI middleware, with the same parameters. The handler's key is `environ["holdfast.idempotency"]`.

    application = WsgiIdempotencyMiddleware(application, hf=hf, scope=user_id)
    """

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serves one request."""
        if environ["REQUEST_METHOD"] not in self._engine.options.methods:
            return self.app(environ, start_response)
        response = _WsgiAdapter(self._engine, self.app, environ, self._scope_of, self._required).serve()
        start_response(response.status, response.headers)
        return response.content()


@dataclass
class _WsgiResponse:
    """A response that is not sent yet: its start, the chunks that were read, and the iterator of the rest."""

    capture: ResponseCapture | None = None
    status: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    source: Iterable[bytes] = ()
    rest: Iterator[bytes] | None = None
    is_sent: bool = False

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        if self.is_sent and exc_info:
            raise exc_info[1]  # too late for another response: the server must close the connection
        self.status, self.headers = status, headers
        self.chunks.clear()
        if self.capture is not None:
            self.capture.start(int(status[:3]), headers)
        return self.write

    def write(self, chunk: bytes, *, more: bool = True) -> bool:
        """Adds a chunk; true if nothing more must be read before the response is settled."""
        self.chunks.append(chunk)
        if self.capture is None:
            return bool(chunk)  # without a key nothing is stored
        return self.capture.write(chunk, more=more) is not CaptureAction.HOLD

    def read(self, source: Iterable[bytes]) -> None:
        """Reads the body. If it is too large to be stored, `rest` is read later, while it is sent."""
        self.source, self.rest = source, iter(source)
        try:
            for chunk in self.rest:
                if self.write(chunk):
                    return
        except BaseException:
            self.close()
            raise
        self.rest = None
        self.write(b"", more=False)
        self.close()  # before it is settled: transactions that end with the request have then ended

    def content(self) -> Iterable[bytes]:
        return [b"".join(self.chunks)] if self.rest is None else self

    def __iter__(self) -> Iterator[bytes]:
        self.is_sent = True
        yield b"".join(self.chunks)
        yield from self.rest or ()

    def close(self) -> None:
        if (close := getattr(self.source, "close", None)) is not None:
            close()


class _WsgiAdapter(SyncAdapter[_WsgiResponse]):
    def __init__(
        self, engine: IdempotencyEngine, app: Application, environ: Environ, scope_of: ScopeOf, required: Required
    ) -> None:
        request = _read(environ)
        key = request.headers.get(engine.options.header)
        is_required = key is None and (required(request) if callable(required) else required)
        super().__init__(engine, request, [] if key is None else [key], lambda: scope_of(request), is_required)
        self._app, self._environ = app, environ

    def body(self, limit: int) -> bytes | None:
        body = _body(self._environ, limit + 1)
        return None if len(body) > limit else body

    def run(self, key: IdempotencyKey, body: bytes | None, capture: ResponseCapture | None) -> _WsgiResponse:
        environ, response = self._environ, _WsgiResponse(capture)
        environ[ENVIRON] = key
        if body is not None:
            environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
            environ.pop("HTTP_TRANSFER_ENCODING", None)
        response.read(self._app(environ, response.start))
        return response

    def make(self, stored: StoredResponse) -> _WsgiResponse:
        status = f"{stored.status} {_phrase(stored.status)}"
        return _WsgiResponse(None, status, list(stored.headers), [stored.body or b""])

    def discard(self, response: _WsgiResponse) -> None:
        if response.rest is not None:
            response.close()


def _read(environ: Environ) -> Request:
    headers = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = environ[name]
    path = quote((environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1"))
    return Request(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), headers, environ)


def _body(environ: Environ, limit: int) -> bytes:
    """The body up to a limit. Without a content length it is read only if the server ends the input.

    Raises `ConnectionAbortedError` if less arrives than the content length: a part must not count as the whole.
    """
    length = environ.get("CONTENT_LENGTH")
    if not length and not environ.get("wsgi.input_terminated"):
        return b""
    remaining = min(int(length), limit) if length else limit
    chunks: list[bytes] = []
    while remaining > 0 and (chunk := environ["wsgi.input"].read(remaining)):
        chunks.append(chunk)
        remaining -= len(chunk)
    if length and remaining > 0:
        raise ConnectionAbortedError("the client disconnected before the end of its request")
    return b"".join(chunks)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
