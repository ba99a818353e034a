"""Request checks (host, origin, CSRF token) and response headers of the console.

A page requires a user. A change also requires a same-origin request (`Origin`), the CSRF token of a console page, and a
sufficient role.
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

# Not `no-referrer`: with it browsers send "Origin: null" on same-origin forms, and `check_origin` would reject them.
_SECURITY_HEADERS = {
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


class Forbidden(Exception):
    """A rejected request. `why` is shown to the user, `status` is the HTTP status."""

    def __init__(self, why: str, status: int = 403) -> None:
        super().__init__(why)
        self.why, self.status = why, status


def add_security_headers(response: Response) -> Response:
    """Adds the headers that prevent framing, content sniffing, caching and foreign scripts."""
    for name, value in _SECURITY_HEADERS.items():
        response.headers.setdefault(name, value)
    return response


def check_host(connection: HTTPConnection, hosts: Iterable[str] | None) -> None:
    """Rejects an unknown `Host` header (DNS rebinding)."""
    if hosts is None:
        return
    given = connection.headers.get("host", "")
    if _name_in(f"//{given}") not in {host.strip("[]").lower() for host in hosts}:
        raise Forbidden(f"This console does not serve the host {given[:100]!r}.", 421)


def check_origin(request: Request, origins: Iterable[str]) -> None:
    """Rejects a cross-site change: `Origin` must match, or `Sec-Fetch-Site` must be `same-origin`."""
    origin = request.headers.get("origin")
    if origin is None:
        if request.headers.get("sec-fetch-site") != "same-origin":
            raise Forbidden("The request has no Origin header. Send it from a page of this console.")
        return
    if origin in set(origins):
        return
    # Compares the host only: behind a proxy that terminates TLS, the scheme here differs from the browser's.
    host = request.headers.get("host", "").lower()
    if not host or origin.lower().partition("://")[2] != host:
        raise Forbidden(f"The request comes from {origin[:100]!r}, not from a page of this console.")


def is_https(request: Request) -> bool:
    """Whether the browser uses HTTPS, including behind a proxy that terminates TLS.

    Uses only headers that the browser sets, so no forwarded header has to be trusted. `Origin` contains the scheme;
    browsers send `Sec-Fetch-Site` only over HTTPS and to loopback names.
    """
    if request.scope["scheme"] == "https" or request.headers.get("origin", "").lower().startswith("https://"):
        return True
    host = _name_in(f"//{request.headers.get('host', '')}")
    local = host in LOOPBACK or host.endswith(".localhost") or host.startswith("127.")
    return "sec-fetch-site" in request.headers and not local


def read_csrf_token(request: Request) -> str:
    """Returns the CSRF token from the cookie, or a new one."""
    kept = request.cookies.get(COOKIE, "")
    if len(kept) == 43 and kept.isascii():
        return kept
    return secrets.token_urlsafe(32)


def set_csrf_cookie(request: Request, response: Response, token: str) -> None:
    """Stores the CSRF token in a cookie that is hidden from scripts and not sent with cross-site requests."""
    if request.cookies.get(COOKIE) != token:
        response.set_cookie(
            COOKIE,
            token,
            path=request.scope.get("root_path", "") + "/",
            httponly=True,
            samesite="strict",
            secure=is_https(request),
        )


def check_csrf_token(request: Request, form: Mapping[str, str]) -> None:
    """Rejects a change if the form's CSRF token differs from the cookie."""
    kept, given = request.cookies.get(COOKIE, ""), form.get(FIELD, "")
    if not kept or not hmac.compare_digest(kept.encode(), given.encode()):
        raise Forbidden("CSRF check failed. Reload the page and try again.")


def _name_in(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
