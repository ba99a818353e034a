"""A visit: one request with who makes it, and what comes of it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from starlette.requests import Request

from holdfast.core.errors import ConfigurationError
from holdfast.interfaces.console.visitor import Role, Visitor
from holdfast.interfaces.console.watch import Watch
from holdfast.ops.service import Operations

PAGE = 50
_WHOLE = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """One request for a screen or a change. `form` holds what was posted."""

    request: Request
    visitor: Visitor
    ops: Operations
    watch: Watch
    token: str
    read_only: bool
    form: Mapping[str, str] = field(default_factory=dict)

    @property
    def query(self) -> Mapping[str, str]:
        """What stands in the address, empty values left out."""
        return {name: value for name, value in self.request.query_params.items() if value.strip()}

    @property
    def root(self) -> str:
        """Where the console is mounted, without a slash at the end."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    @property
    def now_text(self) -> str:
        """The time of day here, for whoever wonders how old a page is."""
        return datetime.now(UTC).strftime("%H:%M:%S UTC")

    def url(self, path: str = "/", /, **query: object) -> str:
        """The address of a screen with a query; what is none is left out."""
        given = {name: value for name, value in query.items() if value is not None}
        return f"{self.root}{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

    def again(self, **query: object) -> str:
        """The address of this screen with some of its query changed."""
        path = str(self.request.scope["path"]).removeprefix(self.root)
        return self.url(path, **{**self.query, **query})

    def may(self, role: str) -> bool:
        """Whether the visitor's role covers this and the console changes anything at all."""
        return not self.read_only and self.visitor.role.covers(Role(role))


@dataclass(frozen=True, slots=True)
class Page:
    """A screen: its template and what it shows."""

    template: str
    shown: Mapping[str, Any] = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True, slots=True)
class Said:
    """What came of a change, in a sentence, and where the visitor goes next. `carry` says that a plan now runs."""

    text: str
    to: str
    carry: bool = False


def read_number(text: str) -> int | None:
    """A whole number from an address or a form, small enough for both databases; none when it is not one."""
    return int(text) if _WHOLE.fullmatch(text) else None


def read_id(text: str) -> UUID:
    """An id from an address or a form."""
    try:
        return UUID(text.strip())
    except ValueError:
        raise ConfigurationError(f"{text[:80]!r} is not an id; copy it whole") from None
