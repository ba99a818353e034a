"""Health: whether the process lives, and whether it can do its work."""

import asyncio
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast._log import get_logger
from holdfast.core.errors import HoldfastError, SchemaMismatch
from holdfast.engine.fields import raised
from holdfast.ops.service import Operations

log = get_logger("holdfast.api")

_PATIENCE = 5.0


def health_routes(ops: Callable[[], Operations]) -> list[Route]:
    """`/healthz` answers while the process lives; `/readyz` when the store can be reached and its tables fit.

    Both are open to everybody, so a reason names no host, database or user. The log does, once for each change.
    """
    logged: list[str] = []

    def unready(reason: str, error: HoldfastError | None = None) -> Response:
        if logged != [reason]:
            logged[:] = [reason]
            log.warning("not ready", reason=reason, **({} if error is None else raised(error)))
        return _answer(503, "unready", reason)

    async def lives(_: Request) -> Response:
        return _answer(200, "ok")

    async def ready(_: Request) -> Response:
        try:
            async with asyncio.timeout(_PATIENCE):
                status = await ops().schema_status()
            status.check()
        except TimeoutError:
            return unready(f"the store did not answer within {_PATIENCE:g} seconds")
        except SchemaMismatch as error:
            return unready("the store's tables do not match this release", error)
        except HoldfastError as error:
            return unready("the store cannot be reached", error)
        if logged:
            logged.clear()
            log.info("ready again")
        return _answer(200, "ready")

    return [Route("/healthz", lives), Route("/readyz", ready)]


def _answer(code: int, status: str, reason: str | None = None) -> Response:
    body = {"status": status} if reason is None else {"status": status, "reason": reason}
    return JSONResponse(body, code, {"cache-control": "no-store"})
