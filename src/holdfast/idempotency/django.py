"""Idempotency for single Django views."""

from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction
from typing import Any, Concatenate, ParamSpec, Unpack
from urllib.parse import quote

from holdfast.core.errors import ConfigurationError
from holdfast.idempotency.blocking import BlockingFront, Parts
from holdfast.idempotency.gate import Chosen, Gate, ScopeOf, open_gate, options
from holdfast.idempotency.key import IdempotencyKey
from holdfast.idempotency.records import App, Records
from holdfast.idempotency.request import Request
from holdfast.stores.integrations.idempotency import StoredResponse

try:
    from django.core.exceptions import RequestDataTooBig
    from django.db import connections
    from django.http import HttpResponse
except ImportError as error:
    raise ConfigurationError("holdfast.idempotency.django needs Django; install holdfast[django]") from error

P = ParamSpec("P")
View = Callable[Concatenate[Any, P], Any]


def idempotent(
    hf: App | None = None,
    *,
    scope: ScopeOf,
    records: Records | None = None,
    required: bool = True,
    **chosen: Unpack[Chosen],
) -> Callable[[View[P]], View[P]]:
    """Carries out a view once for each `Idempotency-Key`.

    `scope(request)` gets Django's request and says whose key it is. The view's key is `request.idempotency`; its
    answer can be stored with the effect by `request.idempotency.sync.complete(...)`. A request without a key is
    refused unless `required=False`. An exception releases the key, also `Http404` and its like.
    """
    gate = open_gate(hf, records, scope, options(**chosen))

    def decorate(view: View[P]) -> View[P]:
        if iscoroutinefunction(view):
            raise TypeError(f"{view.__name__} is async; put the ASGI IdempotencyMiddleware around the application")

        @wraps(view)
        def guarded(request: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
            _check_transactions(guarded)
            return _Front(gate, request, scope, required, lambda: view(request, *args, **kwargs)).serve()

        return guarded

    return decorate


def _check_transactions(view: Any) -> None:
    """A transaction around the view would commit after the answer was kept: then a failed commit could not be told."""
    outside = getattr(view, "_non_atomic_requests", ())
    for alias in connections:
        if connections.settings[alias]["ATOMIC_REQUESTS"] and alias not in outside:
            raise ConfigurationError(
                f"ATOMIC_REQUESTS is on for database {alias!r}, and its transaction ends after the view; decorate the "
                "view with @transaction.non_atomic_requests too, or put the WSGI IdempotencyMiddleware around Django"
            )


class _Front(BlockingFront[Any]):
    def __init__(self, gate: Gate, request: Any, scope_of: ScopeOf, required: bool, view: Callable[[], Any]) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        seen = Request(request.method, quote(request.path), request.META.get("QUERY_STRING", ""), headers, request.META)
        given = headers.get(gate.options.header)
        super().__init__(gate, seen, [] if given is None else [given])
        self._django, self._scope_of, self._required, self._view = request, scope_of, required, view

    def required(self) -> bool:
        return self._required

    def scope(self) -> object:
        return self._scope_of(self._django)

    def body(self, limit: int) -> bytes | None:
        # Django itself reads no more than DATA_UPLOAD_MAX_MEMORY_SIZE.
        try:
            body: bytes = self._django.body
        except RequestDataTooBig:
            return None
        return None if len(body) > limit else body

    def run(self, key: IdempotencyKey, body: bytes | None) -> Any:
        self._django.idempotency = key
        answer = self._view()
        # A template's answer has no content until it is rendered, which Django would do after the view.
        return answer.render() if hasattr(answer, "render") else answer

    def parts(self, answer: Any) -> Parts:
        body = None if answer.streaming else answer.content
        kept = None if body is None or len(body) > self.gate.options.max_response else body
        cookies = [("set-cookie", cookie.OutputString()) for cookie in answer.cookies.values()]
        return answer.status_code, [*answer.items(), *cookies], kept

    def make(self, stored: StoredResponse) -> HttpResponse:
        headers = {name: value for name, value in stored.headers if name != "set-cookie"}
        answer = HttpResponse(stored.body or b"", status=stored.status, headers=headers)
        for name, value in stored.headers:
            if name == "set-cookie":
                answer.cookies.load(value)
        return answer
