"""API tokens, stored as hashes."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from holdfast.core.errors import NotFound, Refused
from holdfast.stores.admin.actions import audited, who
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.row import row_reader


class Scope(StrEnum):
    """The permissions of a token. Each scope includes the previous ones."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def covers(self, needed: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret. `valid`: neither expired nor revoked."""

    id: str
    name: str
    scope: Scope
    prefix: str
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None
    revoked_by: str | None
    valid: bool


_token = row_reader(Token)


@operation
def add_token(
    id: str, name: str, scope: Scope, hash: str, prefix: str, expires: timedelta | None, actor: str
) -> Steps[Token]:
    """Stores the hash of a token. The name of another token can be used again after that one is revoked."""
    values = {"id": id, "name": name, "scope": scope.value, "hash": hash, "prefix": prefix, "expires": expires}
    if not (yield Query("add_token", {**values, **who(actor, None)})):
        raise Refused("create token", name, "in use", "revoke the token with this name, or choose another name")
    yield audited(actor, "create", "token", id, None, {"name": name, "scope": scope.value})
    return next(_token(row) for row in (yield Query("tokens")) if row[0] == id)


@operation(reads=True)
def tokens() -> Steps[list[Token]]:
    """All tokens, oldest first, including revoked ones."""
    return [_token(row) for row in (yield Query("tokens"))]


@operation(reads=True)
def find_token(hash: str) -> Steps[tuple[Token, bool] | None]:
    """The token with this hash, valid or not, and whether its use should be recorded."""
    rows = yield Query("find_token", {"hash": hash})
    return (_token(rows[0][:-1]), bool(rows[0][-1])) if rows else None


@operation(single=True)
def use_token(id: str) -> Steps[None]:
    """Records the use of a token, at most once a minute."""
    yield Query("use_token", {"id": id})


@operation
def revoke_token(token: str, actor: str, reason: str | None) -> Steps[None]:
    """Revokes a token immediately, by its id or name."""
    rows = yield Query("revoke_token", {"token": token, **who(actor, reason)})
    if not rows:
        raise NotFound("valid token", token, "`holdfast tokens list` shows the existing tokens")
    for id, name in rows:
        yield audited(actor, "revoke", "token", id, reason, {"name": name})
