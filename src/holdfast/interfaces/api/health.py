"""Health checks: liveness and readiness."""

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast.core.errors import HoldfastError
from holdfast.ops.readiness import Readiness
from holdfast.ops.service import Operations

_TIMEOUT = 5.0


def health_routes(ops: Callable[[], Operations]) -> list[Route]:
    """`/healthz` returns 200 while the process runs, `/readyz` if the store is reachable and its schema matches."""
    readiness = Readiness()

    async def live(_: Request) -> Response:
        return _respond(200, "ok")

    async def ready(_: Request) -> Response:
        try:
            async with asyncio.timeout(_TIMEOUT):
                status = await ops().schema_status()
            status.check()
        except (TimeoutError, HoldfastError) as error:
            return _respond(503, "unready", readiness.unready(error))
        readiness.ready()
        return _respond(200, "ready")

    return [Route("/healthz", live), Route("/readyz", ready)]


def _respond(code: int, status: str, reason: str | None = None) -> Response:
    body = {"status": status} if reason is None else {"status": status, "reason": reason}
    return JSONResponse(body, code, {"cache-control": "no-store"})
