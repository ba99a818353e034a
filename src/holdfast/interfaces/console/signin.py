"""Sign-in with an API token. Sessions live in this process; every request validates the token again."""

import hashlib
import secrets
import time
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.core.errors import HoldfastError
from holdfast.interfaces.console import templating
from holdfast.interfaces.console.form import read_form
from holdfast.interfaces.console.guard import (
    NotAllowed,
    check_origin,
    check_token,
    is_https,
    keep_token,
    seal,
    token_of,
)
from holdfast.interfaces.console.visitor import Role, Visitor
from holdfast.interfaces.refusals import NOBODY, Refusals
from holdfast.ops.service import Operations
from holdfast.stores.token import Scope

_COOKIE = "holdfast_session"
_SESSION_SECONDS = 12 * 3600
_MAX_SESSIONS = 1000
ROLES = {Scope.READ: Role.VIEWER, Scope.OPERATE: Role.OPERATOR, Scope.ADMIN: Role.ADMIN}


@dataclass(frozen=True, slots=True)
class _Session:
    secret: str
    expires_at: float


class SignIn:
    """Login page and sessions. A session ends with the first request after its token expires or is revoked."""

    def __init__(self, ops: Operations) -> None:
        self._ops = ops
        self._sessions: dict[str, _Session] = {}
        self._refusals = Refusals("console", lambda: ops.store)

    @property
    def routes(self) -> list[Route]:
        return [
            Route("/login", self._show, methods=["GET"]),
            Route("/login", self._sign_in, methods=["POST"]),
            Route("/logout", self._sign_out, methods=["POST"]),
        ]

    async def actor(self, request: Request) -> Visitor | Response:
        """Returns the user of the session, or a redirect to the login page."""
        session = self._sessions.get(_digest(request.cookies.get(_COOKIE, "")))
        if session is not None and session.expires_at > time.monotonic():
            visitor = await self._visitor(session.secret)
            if visitor is not None:
                return visitor
        return RedirectResponse("/login", 303)

    async def _visitor(self, secret: str) -> Visitor | None:
        token = await self._ops.recognise_token(secret)
        return None if token is None or not token.valid else Visitor(token.name, ROLES[token.scope])

    async def _show(self, request: Request) -> Response:
        return _form(request)

    async def _sign_in(self, request: Request) -> Response:
        try:
            form = await read_form(request)
            check_origin(request, ())
            check_token(request, form)
            visitor = await self._visitor(form.get("token", "").strip())
        except NotAllowed as refusal:
            return _form(request, refusal.why, refusal.status)
        except HoldfastError:
            return _form(request, "The store is unavailable. Try again in a moment.", 503)
        if visitor is None:
            client = request.client.host if request.client else None
            await self._refusals.record(NOBODY, "POST", "/login", "invalid, expired or revoked token", client)
            return _form(request, "This token is invalid, expired or revoked.", 401)
        now = time.monotonic()
        self._sessions = {key: one for key, one in self._sessions.items() if one.expires_at > now}
        while len(self._sessions) >= _MAX_SESSIONS:
            del self._sessions[next(iter(self._sessions))]
        key = secrets.token_urlsafe(32)
        self._sessions[_digest(key)] = _Session(form["token"].strip(), now + _SESSION_SECONDS)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            _COOKIE,
            key,
            max_age=_SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=is_https(request),
        )
        return seal(response)

    async def _sign_out(self, request: Request) -> Response:
        try:
            check_origin(request, ())
            check_token(request, await read_form(request))
        except NotAllowed as refusal:
            return _form(request, refusal.why, refusal.status)
        self._sessions.pop(_digest(request.cookies.get(_COOKIE, "")), None)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(_COOKIE)
        return seal(response)


def _form(request: Request, error: str = "", status: int = 200) -> Response:
    token = token_of(request)
    response = HTMLResponse(templating.render("login.html", {"root": "", "token": token, "error": error}), status)
    keep_token(request, response, token)
    return seal(response)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()
