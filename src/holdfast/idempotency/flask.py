"""Idempotency for single Flask views."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Unpack
from urllib.parse import quote

from holdfast.core.errors import ConfigurationError
from holdfast.idempotency.blocking import BlockingFront, Parts
from holdfast.idempotency.gate import Chosen, Gate, ScopeOf, open_gate, options
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import App, Records
from holdfast.idempotency.request import Request
from holdfast.stores.integrations.idempotency import StoredResponse

try:
    from flask import Response, current_app, g, make_response, request
    from werkzeug.exceptions import RequestEntityTooLarge
except ImportError as error:
    raise ConfigurationError("holdfast.idempotency.flask needs Flask; install flask") from error

P = ParamSpec("P")


def idempotent(
    hf: App | None = None,
    *,
    scope: ScopeOf,
    records: Records | None = None,
    required: bool = True,
    **chosen: Unpack[Chosen],
) -> Callable[[Callable[P, Any]], Callable[P, Response]]:
    """Carries out a view once for each `Idempotency-Key`; place it below the route.

    `scope(request)` gets Flask's request and says whose key it is. The view's key is `g.idempotency`; its answer
    can be stored with the effect by `g.idempotency.sync.complete(...)`. A request without a key is refused unless
    `required=False`. An exception releases the key, also the one that `abort` raises.
    """
    gate = open_gate(hf, records, scope, options(**chosen))

    def decorate(view: Callable[P, Any]) -> Callable[P, Response]:
        @wraps(view)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> Response:
            # The view may be async; Flask knows how to run it.
            call = current_app.ensure_sync(view)
            return _Front(gate, scope, required, lambda: make_response(call(*args, **kwargs))).serve()

        return guarded

    return decorate


class _Front(BlockingFront[Response]):
    def __init__(self, gate: Gate, scope_of: ScopeOf, required: bool, view: Callable[[], Response]) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        query = request.query_string.decode("latin-1")
        seen = Request(request.method, quote(request.path), query, headers, request.environ)
        super().__init__(gate, seen, request.headers.getlist(gate.options.header))
        self._scope_of, self._required, self._view = scope_of, required, view

    def required(self) -> bool:
        return self._required

    def scope(self) -> object:
        return self._scope_of(request)

    def body(self, limit: int) -> bytes | None:
        # One more, because a body without a length may be cut there without a word.
        request.max_content_length = min(limit + 1, request.max_content_length or limit + 1)
        try:
            body = request.get_data()
        except RequestEntityTooLarge:
            return None
        return None if len(body) >= request.max_content_length else body

    def run(self, key: IdempotencyKey, body: bytes | None) -> Response:
        g.idempotency = key
        return self._view()

    def parts(self, answer: Response) -> Parts:
        # Where a stream ends is not known: it is carried out once, and not kept.
        body = None if answer.is_streamed else answer.get_data()
        kept = None if body is None or len(body) > self.gate.options.max_response else body
        return answer.status_code, list(answer.headers.items()), kept

    def make(self, stored: StoredResponse) -> Response:
        return Response(stored.body or b"", stored.status, list(stored.headers))
