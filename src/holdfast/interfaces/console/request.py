"""A request to the console with its user, and the possible results: a page or a redirect."""

import re
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlencode

from starlette.requests import Request

from holdfast.core.errors import NotFound
from holdfast.interfaces.console.security import Forbidden
from holdfast.interfaces.console.stats_cache import StatsCache
from holdfast.interfaces.console.user import Role, User
from holdfast.ops.service import Operations

PAGE = 50
_MAX_BYTES = 64 * 1024
_MAX_FIELDS = 50 + PAGE
_NO_TENANT = ("/tenants", "tenant")
"""The page and its parameter for which an empty value has a meaning: the deliveries without a tenant."""
_WHOLE = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleRequest:
    """One request for a page or a change. `form` contains the posted fields."""

    http: Request
    user: User
    ops: Operations
    cache: StatsCache
    csrf_token: str
    read_only: bool
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def query(self) -> Mapping[str, str]:
        """Query parameters without empty values."""
        return {name: value for name, value in self.http.query_params.items() if value.strip()}

    @property
    def root(self) -> str:
        """Mount path of the console, without a trailing slash."""
        return str(self.http.scope.get("root_path", "")).rstrip("/")

    @property
    def now_text(self) -> str:
        """Time at which the page was rendered."""
        return datetime.now(UTC).strftime("%H:%M:%S UTC")

    def url(self, path: str = "/", /, **query: object) -> str:
        """URL of a page. Query parameters that are `None` are omitted."""
        given = {name: value for name, value in query.items() if value is not None}
        return f"{self.root}{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

    def with_query(self, **query: object) -> str:
        """URL of this page with changed query parameters."""
        path = str(self.http.scope["path"]).removeprefix(self.root)
        return self.url(path, **{**dict(filter_values(path, self.http.query_params.items())), **query})

    def chosen(self, *names: str) -> dict[str, str]:
        """The filter of a list: its query parameters that are not empty."""
        return {name: self.query[name].strip() for name in names if name in self.query}

    def page_links(self, following: object | None, *, cursor: str = "before") -> dict[str, str | None]:
        """The links to the next and to the first page of a list. `cursor` is the parameter that holds the position."""
        return {
            "next": None if following is None else self.with_query(**{cursor: following}),
            "newest": self.with_query(**{cursor: None}) if cursor in self.http.query_params else None,
        }

    def can(self, role: str) -> bool:
        """Whether the user has this role and the console is not read-only."""
        return not self.read_only and self.user.role.covers(Role(role))


@dataclass(frozen=True, slots=True)
class HtmlPage:
    """A page: its template and the template's variables."""

    template: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Redirect:
    """Redirect after a change, with a message for the next page. `runs_plan` starts plan execution in this process."""

    text: str
    to: str
    runs_plan: bool = False


def filter_values(path: str, values: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The query parameters of a page that select something: a form also sends its empty fields."""
    return [(name, value) for name, value in values if value.strip() or (path, name) == _NO_TENANT]


async def unknown_name(check: Awaitable[None]) -> str | None:
    """The sentence about a name in the filter that does not exist, or None. A page shows it instead of its empty list."""
    try:
        await check
    except NotFound as error:
        sentence = str(error)
        return f"{sentence[:1].upper()}{sentence[1:]}."
    return None


def read_number(text: str) -> int | None:
    """Parses a whole number that fits into both databases. Returns `None` if `text` is not one."""
    return int(text) if _WHOLE.fullmatch(text) else None


async def read_form(request: Request) -> dict[str, str]:
    """Returns the form's fields. Repeated `ids` are joined; of any other repeated field, the last value wins."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_BYTES:
            raise Forbidden("The form is too large.", 413)
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise Forbidden("The form cannot be parsed.", 400) from None
    ids = " ".join(value for name, value in fields if name == "ids")
    return {**dict(fields), **({"ids": ids} if ids else {})}
