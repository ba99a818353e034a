"""The FastAPI dependency: a route with the parameter `idem: IdempotencyKey` requires a key."""

from typing import TYPE_CHECKING, Annotated

from holdfast.core.errors import ConfigurationError, KeyRequired
from holdfast.idempotency import key
from holdfast.idempotency.asgi import STATE

if TYPE_CHECKING:
    from fastapi import Depends, Header, Request
else:
    try:
        from fastapi import Depends, Header, Request
    except ImportError:
        # `from holdfast import *` works without FastAPI; a route, which uses the name, cannot exist without it.
        Depends, Header, Request = (lambda *_, **__: None), (lambda *_, **__: None), object


def required_key(
    request: Request, idempotency_key: Annotated[str | None, Header(description="New for each operation.")] = None
) -> key.IdempotencyKey:
    """The key of the request; a request without one gets status 400.

    The header is in the signature only for the OpenAPI schema; the middleware reads it.
    """
    found = getattr(request.state, STATE, None)
    if found is None:
        raise ConfigurationError(
            f"{request.method} {request.url.path} needs an IdempotencyKey, but no IdempotencyMiddleware serves it; "
            "call add_middleware(IdempotencyMiddleware, hf=hf, scope=...), and add the method to methods= if it is not "
            "POST or PATCH"
        )
    if found.key is None:
        raise KeyRequired
    assert isinstance(found, key.IdempotencyKey)
    return found


IdempotencyKey = Annotated[key.IdempotencyKey, Depends(required_key)]
"""The key of a request, as the annotation of a route's parameter."""
