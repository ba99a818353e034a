"""Sign-in with an API token. Sessions are kept in the memory of this process; every request validates the token again."""

import hashlib
import secrets
import time
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from holdfast.core.errors import HoldfastError
from holdfast.interfaces.console import template_env
from holdfast.interfaces.console.request import read_form
from holdfast.interfaces.console.security import (
    Forbidden,
    add_security_headers,
    check_csrf_token,
    check_origin,
    is_https,
    read_csrf_token,
    set_csrf_cookie,
)
from holdfast.interfaces.console.user import ROLES, User
from holdfast.interfaces.presentation.refusals import UNAUTHENTICATED, Refusals
from holdfast.ops.service import Operations

_COOKIE = "holdfast_session"
_SESSION_SECONDS = 12 * 3600
_MAX_SESSIONS = 1000


@dataclass(frozen=True, slots=True)
class _Session:
    secret: str
    expires_at: float


class LoginSessions:
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

    async def actor(self, request: Request) -> User | Response:
        """Returns the user of the session, or a redirect to the login page."""
        session = self._sessions.get(_digest(request.cookies.get(_COOKIE, "")))
        if session is not None and session.expires_at > time.monotonic():
            user = await self._user(session.secret)
            if user is not None:
                return user
        return RedirectResponse("/login", 303)

    async def _user(self, secret: str) -> User | None:
        token = await self._ops.recognise_token(secret)
        return None if token is None or not token.valid else User(token.name, ROLES[token.scope])

    async def _show(self, request: Request) -> Response:
        return _login_page(request)

    async def _sign_in(self, request: Request) -> Response:
        try:
            form = await read_form(request)
            check_origin(request, ())
            check_csrf_token(request, form)
            user = await self._user(form.get("token", "").strip())
        except Forbidden as refusal:
            return _login_page(request, refusal.why, refusal.status)
        except HoldfastError:
            return _login_page(request, "The store is unavailable. Try again in a moment.", 503)
        if user is None:
            client = request.client.host if request.client else None
            await self._refusals.record(UNAUTHENTICATED, "POST", "/login", "invalid, expired or revoked token", client)
            return _login_page(request, "This token is invalid, expired or revoked.", 401)
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
        return add_security_headers(response)

    async def _sign_out(self, request: Request) -> Response:
        try:
            check_origin(request, ())
            check_csrf_token(request, await read_form(request))
        except Forbidden as refusal:
            return _login_page(request, refusal.why, refusal.status)
        self._sessions.pop(_digest(request.cookies.get(_COOKIE, "")), None)
        response = RedirectResponse("/login", 303)
        response.delete_cookie(_COOKIE)
        return add_security_headers(response)


def _login_page(request: Request, error: str = "", status: int = 200) -> Response:
    token = read_csrf_token(request)
    response = HTMLResponse(
        template_env.render("login.html", {"root": "", "csrf_token": token, "error": error}), status
    )
    set_csrf_cookie(request, response, token)
    return add_security_headers(response)


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode(errors="replace")).hexdigest()
