"""Tokens of the HTTP API: creating, listing, revoking and authenticating them."""

import hashlib
import secrets
from dataclasses import dataclass, field

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.core.values.names import check_name
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin import token
from holdfast.stores.admin.token import Scope, Token

_PREFIX = "hf_"
_SHOWN = 8
_MAX_LENGTH = 200


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A new token with its secret, which is not stored and cannot be shown again."""

    token: Token
    secret: str = field(repr=False)


def create_token(
    name: str, *, scope: Scope | str = Scope.READ, expires: Duration | None = None, actor: str
) -> TaskSteps[CreatedToken]:
    """Creates a token. Its name is the actor in the audit log. The secret is returned only here."""
    check_name("token", name)
    if scope not in set(Scope):
        raise ConfigurationError(f"scope is {scope!r}; the scopes are {', '.join(Scope)}")
    lasting = None if expires is None else to_timedelta(expires, name="expires")
    if lasting is not None and not lasting:
        raise ConfigurationError("`expires` is zero; pass a duration above zero, such as 90d")
    secret = _PREFIX + secrets.token_urlsafe(32)
    made = token.add_token(
        f"tok_{secrets.token_hex(6)}", name, Scope(scope), digest(secret), secret[:_SHOWN], lasting, actor
    )
    return CreatedToken((yield from transact(made)), secret)


def tokens() -> TaskSteps[list[Token]]:
    """All tokens, oldest first, without their secrets."""
    return (yield from transact(token.tokens()))


def revoke_token(id: str, *, actor: str, reason: str | None = None) -> TaskSteps[None]:
    """Revokes a token immediately, by id or by name."""
    yield from transact(token.revoke_token(id, actor, reason))


def recognise_token(secret: str) -> TaskSteps[Token | None]:
    """The token with this secret, also if it is not valid; None if there is none. Its use is recorded once a minute."""
    if not secret.startswith(_PREFIX) or len(secret) > _MAX_LENGTH:
        return None
    found = yield from transact(token.find_token(digest(secret)))
    if found is None:
        return None
    known, needs_record = found
    if known.valid and needs_record:
        yield from transact(token.use_token(known.id))
    return known


def digest(secret: str) -> str:
    """The stored hash of a secret. 32 random bytes need no salt and no slow hash."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
