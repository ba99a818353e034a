"""Tokens for the HTTP API: made, looked at, revoked, and recognised when somebody comes with one."""

import hashlib
import secrets
from dataclasses import dataclass, field

from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import ConfigurationError
from holdfast.core.names import check_name
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin import token
from holdfast.stores.admin.token import Scope, Token

_MARK = "hf_"
_SHOWN = 8
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class CreatedToken:
    """A new token with its secret, which nobody can see again."""

    token: Token
    secret: str = field(repr=False)


def create_token(
    name: str, *, scope: Scope | str = Scope.READ, expires: Duration | None = None, actor: str
) -> TaskSteps[CreatedToken]:
    """Makes a token; its name is the actor of what is done with it. The secret is shown this once."""
    check_name("token", name)
    if scope not in set(Scope):
        raise ConfigurationError(f"scope is {scope!r}; the scopes are {', '.join(Scope)}")
    lasting = None if expires is None else to_timedelta(expires, name="expires")
    if lasting is not None and not lasting:
        raise ConfigurationError("a token that expires at once opens nothing; give a duration above zero, such as 90d")
    secret = _MARK + secrets.token_urlsafe(32)
    made = token.add_token(
        f"tok_{secrets.token_hex(6)}", name, Scope(scope), digest(secret), secret[:_SHOWN], lasting, actor
    )
    return CreatedToken((yield from transact(made)), secret)


def tokens() -> TaskSteps[list[Token]]:
    """Every token, oldest first: whose, for what, used when; never the secret."""
    return (yield from transact(token.tokens()))


def revoke_token(id: str, *, actor: str, reason: str | None = None) -> TaskSteps[None]:
    """Ends a token at once; it is named by its id or its name."""
    yield from transact(token.revoke_token(id, actor, reason))


def recognise_token(secret: str) -> TaskSteps[Token | None]:
    """The token that has this secret, valid or not; none when there never was one. Its use is noted once a minute."""
    if not secret.startswith(_MARK) or len(secret) > _LONGEST:
        return None
    found = yield from transact(token.find_token(digest(secret)))
    if found is None:
        return None
    known, unnoted = found
    if known.valid and unnoted:
        yield from transact(token.use_token(known.id))
    return known


def digest(secret: str) -> str:
    """What is stored of a secret: 32 random bytes need no salt and no slow hash."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()
