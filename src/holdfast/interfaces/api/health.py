"""Health: whether the process lives, and whether it can do its work."""

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast.core.errors import HoldfastError
from holdfast.ops.readiness import Readiness
from holdfast.ops.service import Operations

_PATIENCE = 5.0


def health_routes(ops: Callable[[], Operations]) -> list[Route]:
    """`/healthz` answers while the process lives; `/readyz` when the store can be reached and its tables fit."""
    readiness = Readiness()

    async def lives(_: Request) -> Response:
        return _answer(200, "ok")

    async def ready(_: Request) -> Response:
        try:
            async with asyncio.timeout(_PATIENCE):
                status = await ops().schema_status()
            status.check()
        except (TimeoutError, HoldfastError) as error:
            return _answer(503, "unready", readiness.unready(error))
        readiness.ready()
        return _answer(200, "ready")

    return [Route("/healthz", lives), Route("/readyz", ready)]


def _answer(code: int, status: str, reason: str | None = None) -> Response:
    body = {"status": status} if reason is None else {"status": status, "reason": reason}
    return JSONResponse(body, code, {"cache-control": "no-store"})
