"""Users of the console and their roles."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from starlette.requests import Request
from starlette.responses import Response

from holdfast._log import get_logger
from holdfast.core.errors import ConfigurationError
from holdfast.core.values.text import sanitize
from holdfast.stores.admin.token import Scope

log = get_logger("holdfast.console")


class Role(StrEnum):
    """Role of a user. Each role includes the roles before it."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, needed: "Role") -> bool:
        order = list(Role)
        return order.index(self) >= order.index(needed)


ROLES = {Scope.READ: Role.VIEWER, Scope.OPERATE: Role.OPERATOR, Scope.ADMIN: Role.ADMIN}
"""The role of the console for each scope of a token."""


@dataclass(frozen=True, slots=True)
class User:
    """A user of the console. `name` is the actor in the audit log."""

    name: str
    role: Role


ActorResult: TypeAlias = User | tuple[str, str] | str | Response | None
Identify: TypeAlias = Callable[[Request], ActorResult | Awaitable[ActorResult]]
"""Returns the user of a request: a `User`, a pair of name and role, or a name (a viewer). `None` rejects the request with
401. A response, such as a redirect to a login page, is sent unchanged."""


async def identify(actor: Identify, request: Request) -> User | Response | None:
    """Calls `actor` and validates its result."""
    result = actor(request)
    if inspect.isawaitable(result):
        result = await result
    match result:
        case None | Response():
            return result
        case User(name, role):
            return _checked_user(name, role)
        case str():
            return _checked_user(result, Role.VIEWER)
        case (str(name), str(role)):
            return _checked_user(name, role)
        case _:
            raise _invalid(
                f"actor returned {type(result).__name__}; return a name and a role, such as ('ada', 'operator'), or None"
            )


def _checked_user(name: str, role: str) -> User:
    if role not in set(Role):
        raise _invalid(f"actor returned the role {role!r}; the roles are {', '.join(Role)}")
    if not name.strip():
        raise _invalid("actor returned an empty name; return the name for the audit log")
    return User(sanitize(name.strip(), 200), Role(role))


def _invalid(problem: str) -> ConfigurationError:
    """The error for the page, also logged: the developer of the function may not see the page."""
    log.warning("console actor invalid", error=problem)
    return ConfigurationError(problem)
