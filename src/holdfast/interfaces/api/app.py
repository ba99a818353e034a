"""The HTTP API as an ASGI application that can be mounted or served standalone."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from holdfast._log import get_logger
from holdfast.core.errors import HoldfastError, SchemaMismatch
from holdfast.core.values.text import storable
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.worker.periodic import every
from holdfast.idempotency.asgi import IdempotencyMiddleware
from holdfast.interfaces.api import commands, plans, queries
from holdfast.interfaces.api.auth import CALLER, AuthMiddleware
from holdfast.interfaces.api.endpoint import ApiCall, ApiEndpoint, Caller
from holdfast.interfaces.api.fields import RequestModel
from holdfast.interfaces.api.health import health_routes
from holdfast.interfaces.api.openapi import document
from holdfast.interfaces.api.problem import Problem, invalid, problem_of, respond
from holdfast.interfaces.presentation.views import view
from holdfast.ops.service import Operations
from holdfast.produce.request_ids import RequestIdMiddleware
from holdfast.stores.admin.token import Scope

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

log = get_logger("holdfast.api")

PREFIX = "/api/v1"
ENDPOINTS: tuple[ApiEndpoint, ...] = (*queries.ENDPOINTS, *plans.ENDPOINTS, *commands.ENDPOINTS)
_MAX_BODY = 1024 * 1024


def api(
    hf: "Holdfast | Operations",
    *,
    anonymous: Caller | None = None,
    metrics: ASGIApp | None = None,
    read_only: bool = False,
) -> Starlette:
    """The HTTP API: `/api/v1/…`, `/healthz`, `/readyz`, and `/metrics` if an application for it is given.

    Every request under `/api/v1` needs a token from `holdfast tokens create`. The name of the token is the actor in the
    audit log. `anonymous` allows requests without a token, but only direct ones from this machine to a loopback name.
    `read_only` limits every token to reading and executes no stored plans. Otherwise a standalone server executes stored
    plans; if the API is mounted, the workers do.
    """
    return _Api(hf, anonymous, metrics, read_only).app


class _Api:
    def __init__(
        self, hf: "Holdfast | Operations", anonymous: Caller | None, metrics: ASGIApp | None, read_only: bool
    ) -> None:
        self._hf, self._read_only = hf, read_only
        self._document = document(ENDPOINTS, PREFIX, tokens=anonymous is None)
        guarded = IdempotencyMiddleware(
            Starlette(routes=self._routes(), exception_handlers=_HANDLERS),
            hf=self,
            scope=lambda request: f"api:{request.raw['state'][CALLER].id}",
            max_body=_MAX_BODY,
        )
        self._auth = AuthMiddleware(guarded, lambda: self.ops, anonymous, read_only=read_only)
        routes: list[BaseRoute] = [
            *health_routes(lambda: self.ops),
            Route(f"{PREFIX}/openapi.json", self._openapi),
            Mount(PREFIX, self._auth),
        ]
        if metrics is not None:
            routes.append(Mount("/metrics", metrics))
        self.app = Starlette(
            routes=routes,
            lifespan=self._lifespan,
            exception_handlers=_HANDLERS,
            middleware=[Middleware(RequestIdMiddleware)],
        )

    @property
    def ops(self) -> Operations:
        # Read on each request: importing an application must not open its store.
        return self._hf if isinstance(self._hf, Operations) else self._hf.ops

    @asynccontextmanager
    async def _lifespan(self, _app: object) -> AsyncIterator[None]:
        if self._read_only:  # executing a plan changes deliveries
            yield
            return
        name = f"api:{socket.gethostname()}:{os.getpid()}"
        running = asyncio.create_task(every(1.0, lambda: self._advance_plans(name)))
        try:
            yield
        finally:
            running.cancel()

    async def _advance_plans(self, name: str) -> None:
        with suppress(SchemaMismatch):  # /readyz reports it
            await self.ops.advance_plans(runner=name)

    async def _openapi(self, request: Request) -> Response:
        # Only the request contains the mount path.
        mounted = request.scope.get("root_path", "")
        document = {**self._document, "servers": [{"url": mounted}]} if mounted else self._document
        return Response(orjson.dumps(document), media_type="application/json")

    def _routes(self) -> list[Route]:
        methods: dict[str, dict[str, ApiEndpoint]] = {}
        for one in ENDPOINTS:
            methods.setdefault(one.path, {})[one.method] = one
        return [
            # A name may contain slashes, escaped or not.
            Route(path.replace("{name}", "{name:path}"), self._handler(own), methods=list(own))
            for path, own in methods.items()
        ]

    def _handler(self, methods: Mapping[str, ApiEndpoint]) -> Any:
        async def serve(request: Request) -> Response:
            return await self._serve(methods["GET" if request.method == "HEAD" else request.method], request)

        return serve

    async def _serve(self, endpoint: ApiEndpoint, request: Request) -> Response:
        caller: Caller = request.scope["state"][CALLER]
        await self._check_scope(request, caller, endpoint.scope)
        _check_path(request)
        query = _query(request, endpoint.query)
        body = None if endpoint.body is None else await _body(request, endpoint.body)
        if getattr(body, "rerun", False):
            # As in the console: a rerun can repeat the effect of a completed delivery.
            await self._check_scope(request, caller, Scope.ADMIN)
        answer = await endpoint.handle(ApiCall(self.ops, caller, request.path_params, query, body))
        return Response(
            orjson.dumps(view(answer)), endpoint.status, {"cache-control": "no-store"}, media_type="application/json"
        )

    async def _check_scope(self, request: Request, caller: Caller, needed: Scope) -> None:
        if not caller.scope.covers(needed):
            note = " (this server is read-only)" if self._read_only else ""
            why = f"requires the scope {needed}, but {caller.name} has {caller.scope}{note}"
            await self._auth.refuse(request, caller.name, why)
            raise Problem(403, "forbidden", f"the request {why}")


def _check_path(request: Request) -> None:
    for value in request.path_params.values():
        if not storable(value):
            raise Problem(404, "not_found", "a name in the path contains an invalid character")


def _query(request: Request, model: type[RequestModel]) -> RequestModel:
    given: dict[str, str | list[str]] = {}
    for name in request.query_params:
        values: Sequence[str] = request.query_params.getlist(name)
        several = name in model.model_fields and model.model_fields[name].default == ()
        if len(values) > 1 and not several:
            raise Problem(400, "invalid_parameters", f"the parameter {name!r} must not be repeated")
        given[name] = list(values) if several else values[0]
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise invalid(400, "invalid_parameters", "query", error) from None


async def _body(request: Request, model: type[RequestModel]) -> RequestModel:
    # Only JSON is accepted: browsers send other types across origins without a preflight request.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Problem(415, "not_json", "send the body as application/json")
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > _MAX_BODY:
            raise Problem(413, "too_large", f"the body exceeds {_MAX_BODY:,} bytes")
    try:
        orjson.loads(bytes(raw))
    except orjson.JSONDecodeError as error:
        raise Problem(400, "invalid_json", f"the body is not valid JSON: {error}") from None
    try:
        return model.model_validate_json(bytes(raw), strict=True)
    except ValidationError as error:
        raise invalid(422, "invalid_body", "body", error) from None


async def _on_problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, Problem)
    return respond(error)


async def _on_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    return respond(problem_of(error))


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return respond(Problem(404, "no_such_path", f"no such path; see {PREFIX}/openapi.json"))
    detail = f"the method {request.method} is not allowed for this path"
    return respond(Problem(error.status_code, "not_allowed", detail, headers=dict(error.headers or {})))


async def _on_unexpected_error(request: Request, error: Exception) -> Response:
    # Without the traceback: its variables could contain the token or a payload.
    log.error("api request failed", operation=f"{request.method} {request.scope['path']}", **error_fields(error))
    return respond(Problem(500, "internal_error", "internal error in Holdfast; see its log"))


_HANDLERS: Any = {
    Problem: _on_problem,
    HoldfastError: _on_error,
    HTTPException: _on_http,
    Exception: _on_unexpected_error,
}
