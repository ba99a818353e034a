"""Authentication of the API by bearer token, or by origin if the API is served without tokens."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast._log import get_logger
from holdfast.core.errors import HoldfastError
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.interfaces.api.endpoint import Caller
from holdfast.interfaces.api.problem import Problem, problem_of, respond
from holdfast.interfaces.presentation.refusals import UNAUTHENTICATED, RateLimit, Refusals
from holdfast.ops.service import Operations
from holdfast.stores.admin.token import Scope as TokenScope

log = get_logger("holdfast.api")

CALLER = "holdfast_caller"
_DIRECT = "without tokens, only direct requests from this machine are allowed"
_FORWARDED = frozenset(
    {"forwarded", "via", "x-real-ip", "x-original-host", "x-client-ip", "true-client-ip", "cf-connecting-ip"}
)


def is_loopback(host: str) -> bool:
    """Whether the address is reachable only from this machine."""
    bare = host.strip("[]").partition("%")[0].lower()
    if bare == "localhost":
        return True
    try:
        return ip_address(bare).is_loopback
    except ValueError:
        return False


def forwarded_by(headers: Mapping[str, str]) -> str | None:
    """The header that shows that a proxy forwarded the request, or None for a direct request."""
    return next((name for name in headers if name.startswith("x-forwarded-") or name in _FORWARDED), None)


class AuthMiddleware:
    """Passes requests with a valid token on and stores their caller in the scope.

    With `anonymous`, direct requests from this machine pass without a token.
    """

    def __init__(
        self, inner: ASGIApp, ops: Callable[[], Operations], anonymous: Caller | None, *, read_only: bool = False
    ) -> None:
        self._inner, self._ops, self._anonymous, self._read_only = inner, ops, anonymous, read_only
        self.refusals = Refusals("api", lambda: ops().store)
        self._error_logs = RateLimit()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._inner(scope, receive, send)
            return
        connection = HTTPConnection(scope)
        try:
            caller = await self._caller(connection)
            scope.setdefault("state", {})[CALLER] = (
                replace(caller, scope=TokenScope.READ) if self._read_only else caller
            )
        except Problem as problem:
            await respond(problem)(scope, receive, send)
        except HoldfastError as error:
            # The caller is not authenticated yet, so the response names neither the store nor its host.
            if self._error_logs.take() is not None:
                log.warning("caller identification failed", **error_fields(error))
            found = problem_of(error)
            shown = Problem(found.status, found.code, "the store cannot be reached; try again", headers=found.headers)
            await respond(shown)(scope, receive, send)
        else:
            await self._inner(scope, receive, send)

    async def _caller(self, connection: HTTPConnection) -> Caller:
        if self._anonymous is not None:
            self._check_direct(connection)
            self._check_host(connection)
            return self._anonymous
        kind, _, secret = connection.headers.get("authorization", "").partition(" ")
        if not secret:
            raise await self._unauthorized(connection, UNAUTHENTICATED, "the request has no bearer token")
        found = await self._ops().recognise_token(secret.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise await self._unauthorized(connection, UNAUTHENTICATED, "the token is invalid")
        if not found.valid:
            state = "revoked" if found.revoked_at is not None else "expired"
            raise await self._unauthorized(connection, found.name, f"the token is {state}")
        return Caller(found.name, found.scope, found.id)

    def _check_direct(self, connection: HTTPConnection) -> None:
        """Rejects forwarded and remote requests: without tokens, every client behind a proxy would have full access."""
        if header := forwarded_by(connection.headers):
            raise Problem(403, "forwarded", f"{_DIRECT}; this request was forwarded by a proxy (header {header})")
        if connection.client is None or not is_loopback(connection.client.host):
            raise Problem(403, "not_local", f"{_DIRECT}; this request came from another machine")

    def _check_host(self, connection: HTTPConnection) -> None:
        """Rejects other hosts and origins: without tokens, another website could send requests through the browser."""
        given = connection.headers.get("host", "")
        origin = connection.headers.get("origin")
        for address in (f"//{given}", *([origin] if origin else [])):
            try:
                host = urlsplit(address).hostname or ""
            except ValueError:
                host = ""
            if not is_loopback(host):
                raise Problem(
                    421, "foreign_host", "without tokens, the API accepts only loopback names as Host and Origin"
                )

    async def _unauthorized(self, connection: HTTPConnection, name: str, why: str) -> Problem:
        await self.refuse(connection, name, why)
        detail = f"{why}; create one with `holdfast tokens create` and send it as Authorization: Bearer"
        return Problem(401, "unauthorized", detail, headers={"www-authenticate": 'Bearer realm="holdfast"'})

    async def refuse(self, connection: HTTPConnection, name: str, why: str) -> None:
        """Records a refusal in the log and the audit log."""
        client = connection.client.host if connection.client else None
        await self.refusals.record(name, str(connection.scope.get("method")), connection.url.path, why, client)
