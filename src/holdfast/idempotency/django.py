"""Idempotency for single Django views."""

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Concatenate, ParamSpec, Unpack
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
    from django.core.exceptions import RequestDataTooBig
    from django.db import connections
    from django.http import HttpResponse
except ImportError as error:
    raise ConfigurationError(
        "holdfast.idempotency.django needs Django; run `pip install 'holdfast[django]'`"
    ) from error

P = ParamSpec("P")
View = Callable[Concatenate[Any, P], Any]


@requires_options(scope=SCOPE_REMEDY)
def idempotent(
    hf: IdempotencyApp | None = None,
    *,
    scope: ScopeOf,
    records: Records | None = None,
    required: bool = True,
    **settings: Unpack[IdempotencySettings],
) -> Callable[[View[P]], View[P]]:
    """Runs a view once for each `Idempotency-Key`.

    `scope(request)` receives Django's request and returns the owner of the key. The view's key is
    `request.idempotency`; `request.idempotency.sync.complete(...)` stores the response together with the effect. A
    request without a key is rejected unless `required=False`. An exception releases the key, including `Http404`.
    """
    engine = make_engine(hf, records, scope, options(**settings))

    def decorate(view: View[P]) -> View[P]:
        if iscoroutinefunction(view):
            raise TypeError(f"{view.__name__} is async; put the ASGI IdempotencyMiddleware around the application")

        @wraps(view)
        def guarded(request: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            _check_transactions(guarded)
            return _DjangoAdapter(engine, request, scope, required, lambda: view(request, *args, **kwargs)).serve()

        return guarded

    return decorate


def _check_transactions(view: Any) -> None:
    """Rejects a transaction around the view: it would commit after the response was stored, and could still fail."""
    outside = getattr(view, "_non_atomic_requests", ())
    for alias in connections:
        if connections.settings[alias]["ATOMIC_REQUESTS"] and alias not in outside:
            raise ConfigurationError(
                f"ATOMIC_REQUESTS is on for database {alias!r}, and its transaction ends after the view; decorate the "
                "view with @transaction.non_atomic_requests too, or put the WsgiIdempotencyMiddleware around Django"
            )


class _DjangoAdapter(SyncAdapter[Any]):
    def __init__(
        self, engine: IdempotencyEngine, request: Any, scope_of: ScopeOf, required: bool, view: Callable[[], Any]
    ) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Request(request.method, quote(request.path), request.META.get("QUERY_STRING", ""), headers, request.META)
        given = headers.get(engine.options.header)
        super().__init__(engine, seen, [] if given is None else [given], lambda: scope_of(request), required)
        self._django, self._view = request, view

    def body(self, limit: int) -> bytes | None:
        # Django reads at most DATA_UPLOAD_MAX_MEMORY_SIZE.
        try:
            body: bytes = self._django.body
        except RequestDataTooBig:
            return None
        return None if len(body) > limit else body

    def run(self, key: IdempotencyKey, body: bytes | None, capture: ResponseCapture | None) -> Any:
        self._django.idempotency = key
        response = self._view()
        if hasattr(response, "render"):
            # A template response has no content until it is rendered, which Django would do after the view.
            response = response.render()
        if capture is not None:
            cookies = [("set-cookie", cookie.OutputString()) for cookie in response.cookies.values()]
            capture.start(response.status_code, [*response.items(), *cookies])
            capture.write(b"" if response.streaming else response.content, more=response.streaming)
        return response

    def make(self, stored: StoredResponse) -> HttpResponse:
        headers = {name: value for name, value in stored.headers if name != "set-cookie"}
        answer = HttpResponse(stored.body or b"", status=stored.status, headers=headers)
        for name, value in stored.headers:
            if name == "set-cookie":
                answer.cookies.load(value)
        return answer
