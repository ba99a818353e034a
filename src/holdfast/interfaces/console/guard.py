"""The guard: checks every request before a screen sees it, and seals every answer.

A page is for whoever the application says it is for. A change needs more: it comes from a page of this console (the
`Origin` the browser vouches for, and a token only such a page holds) and from somebody whose role covers it.
"""

import hmac
import secrets
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

COOKIE = "holdfast_console"
FIELD = "csrf"
LOOPBACK = ("localhost", "127.0.0.1", "::1")

# Not no-referrer: under it browsers say "Origin: null" even to ourselves, and forms could not be told from forgeries.
_SEALS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class NotAllowed(Exception):
    """A request that is turned away; the message says why, `status` how."""

    def __init__(self, why: str, status: int = 403) -> None:
        super().__init__(why)
        self.why, self.status = why, status


def seal(response: Response) -> Response:
    """`response` with the headers that keep it from being framed, sniffed, cached, or running what is not ours."""
    for name, value in _SEALS.items():
        response.headers.setdefault(name, value)
    return response


def check_host(connection: HTTPConnection, hosts: Iterable[str] | None) -> None:
    """Refuses a Host that is none of ours: a foreign name that was made to point here (DNS rebinding)."""
    if hosts is None:
        return
    given = connection.headers.get("host", "")
    if _name_in(f"//{given}") not in {host.strip("[]").lower() for host in hosts}:
        raise NotAllowed(f"this console does not answer to the host {given[:100]!r}", 421)


def check_origin(request: Request, origins: Iterable[str]) -> None:
    """Refuses a change that another site's page asked for: the Origin is ours, or the browser says it is the same."""
    origin = request.headers.get("origin")
    if origin is None:
        if request.headers.get("sec-fetch-site") != "same-origin":
            raise NotAllowed("the request does not say which page it comes from")
        return
    if origin in set(origins):
        return
    # The host alone: behind a proxy that ends TLS the scheme seen here is not the browser's.
    host = request.headers.get("host", "").lower()
    if not host or origin.lower().partition("://")[2] != host:
        raise NotAllowed(f"the request comes from a page of {origin[:100]!r}, not of this console")


def is_https(request: Request) -> bool:
    """Whether the browser reached the console over HTTPS, also where a proxy ends TLS and passes plain HTTP on.

    The browser's own headers say so; no forwarded header has to be trusted. `Origin` holds the scheme that the browser
    used, and `Sec-Fetch-Site` is sent only over HTTPS and to this machine's own names.
    """
    if request.scope["scheme"] == "https" or request.headers.get("origin", "").lower().startswith("https://"):
        return True
    host = _name_in(f"//{request.headers.get('host', '')}")
    local = host in LOOPBACK or host.endswith(".localhost") or host.startswith("127.")
    return "sec-fetch-site" in request.headers and not local


def token_of(request: Request) -> str:
    """The visitor's token: from the cookie, or a new one."""
    kept = request.cookies.get(COOKIE, "")
    if len(kept) == 43 and kept.isascii():
        return kept
    return secrets.token_urlsafe(32)


def keep_token(request: Request, response: Response, token: str) -> None:
    """Puts the token into a cookie that no script reads and no other site's request carries."""
    if request.cookies.get(COOKIE) != token:
        response.set_cookie(
            COOKIE,
            token,
            path=request.scope.get("root_path", "") + "/",
            httponly=True,
            samesite="strict",
            secure=is_https(request),
        )


def check_token(request: Request, form: Mapping[str, str]) -> None:
    """Refuses a change whose form does not hold the token of the cookie."""
    kept, given = request.cookies.get(COOKIE, ""), form.get(FIELD, "")
    if not kept or not hmac.compare_digest(kept.encode(), given.encode()):
        raise NotAllowed("the form is not of this visit; go back, load the page anew and try again")


def _name_in(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
