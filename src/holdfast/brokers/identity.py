"""Which headers of a record name a user, a tenant or their rights."""

import re

_NOT_IN_NAMES = re.compile(r"[^a-z0-9]")
_WHO = ("user", "tenant", "org", "organization", "organisation", "account", "actor", "principal", "impersonator")
_WHAT = ("", "id", "key", "name", "type", "email", "role", "roles")
_IDENTITY = frozenset(
    {
        *(who + what for who in _WHO for what in _WHAT),
        *("role", "roles", "permission", "permissions", "scope", "scopes", "sub", "onbehalfof"),
        *("authorization", "cookie", "session", "sessionid", "isadmin", "admin"),
    }
)


def is_identity(name: str) -> bool:
    """Whether a header says on whose behalf something happens: `user_id`, `X-Tenant-Id`, `org_id`, `actor_type` …

    >>> [is_identity(name) for name in ("user_id", "X-Tenant", "request_id")]
    [True, True, False]
    """
    plain = _NOT_IN_NAMES.sub("", name.lower())
    return plain in _IDENTITY or plain.removeprefix("x") in _IDENTITY
