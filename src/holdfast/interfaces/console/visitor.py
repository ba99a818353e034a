"""Users of the console and their roles."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from holdfast.core.errors import ConfigurationError
from holdfast.core.text import sanitise


class Role(StrEnum):
    """Role of a user. Each role includes the roles before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True)
class Visitor:
    """A user of the console. `name` is the actor in the audit log."""

    name: str
    role: Role


Answer: TypeAlias = Visitor | tuple[str, str] | str | Response | None
Identify: TypeAlias = Callable[[Request], Answer | Awaitable[Answer]]
"""Returns the user of a request: a `User`, a pair of name and role, or a name (a viewer). `None` rejects the request with
401. A response, such as a redirect to a login page, is sent unchanged."""


async def identify(actor: Identify, request: Request) -> Visitor | Response | None:
    """Calls `actor` and validates its result."""
    answer = actor(request)
    if inspect.isawaitable(answer):
        answer = await answer
    match answer:
        case None | Response():
            return answer
        case Visitor(name, role):
            return _visitor(name, role)
        case str():
            return _visitor(answer, Role.VIEWER)
        case (str(name), str(role)):
            return _visitor(name, role)
        case _:
            raise ConfigurationError(
                f"actor returned {type(answer).__name__}; return a name and a role, such as ('ada', 'operator'), or None"
            )


def _visitor(name: str, role: str) -> Visitor:
    if role not in set(Role):
        raise ConfigurationError(f"actor returned the role {role!r}; the roles are {', '.join(Role)}")
    if not name.strip():
        raise ConfigurationError("actor returned an empty name; return the name for the audit log")
    return Visitor(sanitise(name.strip(), 200), Role(role))
