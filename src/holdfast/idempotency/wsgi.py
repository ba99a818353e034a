"""Idempotency for WSGI applications: Flask, Django, Pyramid, Bottle."""

import io
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Unpack
from urllib.parse import quote

from holdfast.idempotency.blocking import BlockingFront, Parts
from holdfast.idempotency.gate import Chosen, Gate, Required, ScopeOf, open_gate, options
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import App, Records
from holdfast.idempotency.request import Request
from holdfast.stores.integrations.idempotency import StoredResponse

Environ = dict[str, Any]
StartResponse = Callable[..., Callable[[bytes], object]]
Application = Callable[[Environ, StartResponse], Iterable[bytes]]

ENVIRON = "holdfast.idempotency"


class IdempotencyMiddleware:
    """Carries out a request with an `Idempotency-Key` once, and answers its repetitions as the first time.

    The WSGI twin of the ASGI middleware, with the same parameters. The handler's key is
    `environ["holdfast.idempotency"]`.

    application = IdempotencyMiddleware(application, hf=hf, scope=user_id)
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

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Serves one request."""
        if environ["REQUEST_METHOD"] not in self._gate.options.methods:
            return self.app(environ, start_response)
        answer = _Front(self._gate, self.app, environ, self._scope_of, self._required).serve()
        start_response(answer.status, answer.headers)
        return answer.out()


@dataclass
class _Answer:
    """An answer that is held back: its head, what came of its body, and whatever is still to come."""

    status: str = ""
    headers: list[tuple[str, str]] = field(default_factory=list)
    chunks: list[bytes] = field(default_factory=list)
    source: Iterable[bytes] = ()
    rest: Iterator[bytes] | None = None
    size: int = 0
    sent: bool = False

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        if self.sent and exc_info:
            raise exc_info[1]  # too late for another answer: the server must break off
        self.status, self.headers = status, headers
        return self.take

    def take(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk)

    def fill(self, source: Iterable[bytes], limit: int) -> None:
        """Takes the body in; of one that is longer than the limit the rest is left to come."""
        self.source, self.rest = source, iter(source)
        try:
            for chunk in self.rest:
                self.take(chunk)
                if self.size > limit:
                    return
        except BaseException:
            self.close()
            raise
        self.rest = None
        self.close()  # before it is settled: what ends with the request has ended

    def out(self) -> Iterable[bytes]:
        return [b"".join(self.chunks)] if self.rest is None else self

    def __iter__(self) -> Iterator[bytes]:
        self.sent = True
        yield b"".join(self.chunks)
        yield from self.rest or ()

    def close(self) -> None:
        if (close := getattr(self.source, "close", None)) is not None:
            close()


class _Front(BlockingFront[_Answer]):
    def __init__(self, gate: Gate, app: Application, environ: Environ, scope_of: ScopeOf, required: Required) -> None:
        request = _read(environ)
        given = request.headers.get(gate.options.header)
        super().__init__(gate, request, [] if given is None else [given])
        self._app, self._environ, self._scope_of, self._required = app, environ, scope_of, required

    def required(self) -> bool:
        return self._required(self.request) if callable(self._required) else self._required

    def scope(self) -> object:
        return self._scope_of(self.request)

    def body(self, limit: int) -> bytes | None:
        body = _body(self._environ, limit + 1)
        return None if len(body) > limit else body

    def run(self, key: IdempotencyKey, body: bytes | None) -> _Answer:
        environ, answer = self._environ, _Answer()
        environ[ENVIRON] = key
        if body is not None:
            environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
            environ.pop("HTTP_TRANSFER_ENCODING", None)
        # Without a key nothing is kept, and nothing held back.
        answer.fill(self._app(environ, answer.start), 0 if body is None else self.gate.options.max_response)
        return answer

    def parts(self, answer: _Answer) -> Parts:
        whole = answer.rest is None and answer.size <= self.gate.options.max_response
        body = b"".join(answer.chunks) if whole else None
        return int(answer.status[:3]), answer.headers, body

    def make(self, stored: StoredResponse) -> _Answer:
        return _Answer(f"{stored.status} {_phrase(stored.status)}", list(stored.headers), [stored.body or b""])

    def dismiss(self, answer: _Answer) -> None:
        if answer.rest is not None:
            answer.close()


def _read(environ: Environ) -> Request:
    headers = {name[5:].replace("_", "-").lower(): value for name, value in environ.items() if name.startswith("HTTP_")}
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = environ[name]
    path = quote((environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")).encode("latin-1"))
    return Request(environ["REQUEST_METHOD"], path, environ.get("QUERY_STRING", ""), headers, environ)


def _body(environ: Environ, limit: int) -> bytes:
    """The body up to a limit. Without a length only a server that ends its input is read.

    `ConnectionAbortedError` when less comes than the length says: a part must not pass for the whole.
    """
    length = environ.get("CONTENT_LENGTH")
    if not length and not environ.get("wsgi.input_terminated"):
        return b""
    wanted = min(int(length), limit) if length else limit
    chunks: list[bytes] = []
    while wanted > 0 and (chunk := environ["wsgi.input"].read(wanted)):
        chunks.append(chunk)
        wanted -= len(chunk)
    if length and wanted > 0:
        raise ConnectionAbortedError("the client went away in the middle of its request")
    return b"".join(chunks)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
