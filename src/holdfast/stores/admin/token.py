"""Tokens that open the HTTP API, known by their hash alone."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from holdfast.core.errors import NotFound, Refused
from holdfast.stores.admin.actions import audited, who
from holdfast.stores.dialect import aware_time, optional_time
from holdfast.stores.operation import Query, Row, Steps, operation


class Scope(StrEnum):
    """What a token lets its holder do. Each scope includes those before it."""

    READ = "read"
    OPERATE = "operate"
    ADMIN = "admin"

    def covers(self, needed: "Scope") -> bool:
        order = list(Scope)
        return order.index(self) >= order.index(needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token as operators see it: never the secret. `valid` says whether it opens anything now."""

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


@operation
def add_token(
    id: str, name: str, scope: Scope, hash: str, prefix: str, expires: timedelta | None, actor: str
) -> Steps[Token]:
    """Stores a token by its hash. Its name is free only once the one that had it is revoked."""
    values = {"id": id, "name": name, "scope": scope.value, "hash": hash, "prefix": prefix, "expires": expires}
    if not (yield Query("add_token", {**values, **who(actor, None)})):
        raise Refused("create token", name, "taken", "revoke the one that has this name, or choose another")
    yield audited(actor, "create", "token", id, None, {"name": name, "scope": scope.value})
    return next(_token(row) for row in (yield Query("tokens")) if row[0] == id)


@operation(reads=True)
def tokens() -> Steps[list[Token]]:
    """Every token, oldest first; revoked ones too."""
    return [_token(row) for row in (yield Query("tokens"))]


@operation(reads=True)
def find_token(hash: str) -> Steps[tuple[Token, bool] | None]:
    """The token with this hash, valid or not, and whether its use is worth noting again."""
    rows = yield Query("find_token", {"hash": hash})
    return (_token(rows[0][:-1]), bool(rows[0][-1])) if rows else None


@operation(single=True)
def use_token(id: str) -> Steps[None]:
    """Notes that a token was used, at most once a minute."""
    yield Query("use_token", {"id": id})


@operation
def revoke_token(token: str, actor: str, reason: str | None) -> Steps[None]:
    """Ends a token at once, named by its id or its name."""
    rows = yield Query("revoke_token", {"token": token, **who(actor, reason)})
    if not rows:
        raise NotFound("valid token", token, "`holdfast tokens list` shows those there are")
    for id, name in rows:
        yield audited(actor, "revoke", "token", id, reason, {"name": name})


def _token(row: Row) -> Token:
    id, name, scope, prefix, created, creator, expires, used, revoked, revoker, valid = row
    return Token(
        id=id,
        name=name,
        scope=Scope(scope),
        prefix=prefix,
        created_at=aware_time(created),
        created_by=creator,
        expires_at=optional_time(expires),
        last_used_at=optional_time(used),
        revoked_at=optional_time(revoked),
        revoked_by=revoker,
        valid=bool(valid),
    )
