"""The FastAPI dependency: `idem: IdempotencyKey` in a route requires a key and hands it over."""

from typing import Annotated

from holdfast.core.errors import ConfigurationError, KeyRequired
from holdfast.idempotency import key
from holdfast.idempotency.asgi import STATE

try:
    from fastapi import Depends, Header, Request
except ImportError as error:
    raise ConfigurationError("IdempotencyKey is a FastAPI dependency; install fastapi") from error


def required_key(
    request: Request, idempotency_key: Annotated[str | None, Header(description="New for each operation.")] = None
) -> key.IdempotencyKey:
    """The request's key; a request without one is answered 400.

    The header stands in the signature for the API's description; the middleware reads it.
    """
    found = getattr(request.state, STATE, None)
    if found is None:
        raise ConfigurationError(
            f"{request.method} {request.url.path} asks for an IdempotencyKey, and no IdempotencyMiddleware guards it; "
            "add_middleware(IdempotencyMiddleware, hf=hf, scope=...), and name the method in methods= if it is not "
            "POST or PATCH"
        )
    if found.key is None:
        raise KeyRequired
    assert isinstance(found, key.IdempotencyKey)
    return found


IdempotencyKey = Annotated[key.IdempotencyKey, Depends(required_key)]
"""The key of a request, for a route's parameter: `idem: IdempotencyKey`."""
