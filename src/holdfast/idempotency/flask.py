"""Idempotency for single Flask views."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, Unpack
from urllib.parse import quote

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.arguments import requires_options
from holdfast.idempotency.capture import ResponseCapture
from holdfast.idempotency.engine import (
    SCOPE_REMEDY,
    IdempotencyEngine,
    IdempotencySettings,
    ScopeOf,
    make_engine,
    options,
)
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import IdempotencyApp, Records
from holdfast.idempotency.request import Request
from holdfast.idempotency.sync_adapter import SyncAdapter
from holdfast.stores.integrations.idempotency import StoredResponse

try:
    from flask import Response, current_app, g, make_response, request
    from werkzeug.exceptions import RequestEntityTooLarge
except ImportError as error:
    raise ConfigurationError("holdfast.idempotency.flask needs Flask; run `pip install 'holdfast[flask]'`") from error

P = ParamSpec("P")


@requires_options(scope=SCOPE_REMEDY)
def idempotent(
    hf: IdempotencyApp | None = None,
    *,
    scope: ScopeOf,
    records: Records | None = None,
    required: bool = True,
    **settings: Unpack[IdempotencySettings],
) -> Callable[[Callable[P, Any]], Callable[P, Response]]:
    """Runs a view once for each `Idempotency-Key`; place it below the route.

    `scope(request)` receives Flask's request and returns the owner of the key. The view's key is `g.idempotency`;
    `g.idempotency.sync.complete(...)` stores the response together with the effect. A request without a key is rejected
    unless `required=False`. An exception releases the key, including the one that `abort` raises.
    """
    engine = make_engine(hf, records, scope, options(**settings))

    def decorate(view: Callable[P, Any]) -> Callable[P, Response]:
        @wraps(view)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> Response:
            # The view may be async; Flask can run it.
            call = current_app.ensure_sync(view)
            return _FlaskAdapter(engine, scope, required, lambda: make_response(call(*args, **kwargs))).serve()

        return guarded

    return decorate


class _FlaskAdapter(SyncAdapter[Response]):
    def __init__(
        self, engine: IdempotencyEngine, scope_of: ScopeOf, required: bool, view: Callable[[], Response]
    ) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        query = request.query_string.decode("latin-1")
        seen = Request(request.method, quote(request.path), query, headers, request.environ)
        keys = request.headers.getlist(engine.options.header)
        super().__init__(engine, seen, keys, lambda: scope_of(request), required)
        self._view = view

    def body(self, limit: int) -> bytes | None:
        # One byte more: a body without a content length is cut at the limit without an error.
        request.max_content_length = min(limit + 1, request.max_content_length or limit + 1)
        try:
            body = request.get_data()
        except RequestEntityTooLarge:
            return None
        return None if len(body) >= request.max_content_length else body

    def run(self, key: IdempotencyKey, body: bytes | None, capture: ResponseCapture | None) -> Response:
        g.idempotency = key
        response = self._view()
        if capture is not None:
            capture.start(response.status_code, list(response.headers.items()))
            # A stream may not end: it runs once, and its body is not stored.
            capture.write(b"" if response.is_streamed else response.get_data(), more=response.is_streamed)
        return response

    def make(self, stored: StoredResponse) -> Response:
        return Response(stored.body or b"", stored.status, list(stored.headers))
