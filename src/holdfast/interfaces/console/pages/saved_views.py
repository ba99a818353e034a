"""Saved views: pages with their filters under names that a user chose, kept in a cookie of the browser."""

import re
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.text import printable
from holdfast.interfaces.console.request import ConsoleRequest, filter_values
from holdfast.interfaces.console.security import is_https

COOKIE = "holdfast_views"
_MAX_VIEWS = 20
_MAX_BYTES = 3_500
_MAX_NAME = 40
_YEAR = 365 * 86_400
_PATH = re.compile(r"/[a-z-]*")
_POSITIONS = ("before", "after", "after_at", "after_scope", "after_key")


class SavedView(NamedTuple):
    """A page with its filter: `address` is the path and query below the console's root."""

    name: str
    address: str


def saved_views(request: Request) -> list[SavedView]:
    """The views in the browser's cookie. A changed cookie cannot lead to another site."""
    found = []
    for part in request.cookies.get(COOKIE, "").split("&")[:_MAX_VIEWS]:
        name, _, address = part.partition("=")
        name, address = unquote(name), unquote(address)
        if name and _PATH.fullmatch(address.partition("?")[0]):
            found.append(SavedView(printable(name[:_MAX_NAME]), address))
    return found


def view_address(path: str, query: str) -> str | None:
    """The address under which a list is saved: without its position. None for a page that is not a list with a filter."""
    values = filter_values(path, parse_qsl(query, keep_blank_values=True))
    kept = [(name, value) for name, value in values if name not in _POSITIONS]
    return f"{path}?{urlencode(kept)}" if kept and _PATH.fullmatch(path) else None


async def save(request: ConsoleRequest) -> Response:
    """Saves the address of the form under its name, and replaces an older view of that name."""
    name = " ".join(request.form.get("name", "").split())
    path, _, query = request.form.get("address", "").partition("?")
    address = view_address(path, query)
    if not 1 <= len(name) <= _MAX_NAME:
        raise ConfigurationError(f"enter a name of 1 to {_MAX_NAME} characters for the view")
    if address is None:
        raise ConfigurationError("this page has no filter; set one and save the view again")
    views = [one for one in saved_views(request.http) if one.name != name]
    text = _encoded([*views, SavedView(name, address)])
    if len(views) >= _MAX_VIEWS or len(text) > _MAX_BYTES:
        raise ConfigurationError("the browser has no room for another view; remove one and save again")
    return _stored(request, text, request.root + address)


async def remove(request: ConsoleRequest) -> Response:
    """Removes the view of this name."""
    views = [one for one in saved_views(request.http) if one.name != request.form.get("name")]
    return _stored(request, _encoded(views), request.url("/"))


def _encoded(views: list[SavedView]) -> str:
    return "&".join(f"{quote(one.name, safe='')}={quote(one.address, safe='')}" for one in views)


def _stored(request: ConsoleRequest, text: str, to: str) -> Response:
    response = RedirectResponse(to, 303)
    response.set_cookie(
        COOKIE,
        text,
        max_age=_YEAR if text else 0,
        path=request.root + "/",
        httponly=True,
        samesite="strict",
        secure=is_https(request.http),
    )
    return response
