"""The API on every store, and clients with tokens of each scope."""

from collections.abc import AsyncIterator, Callable

import httpx2
import pytest

from holdfast.interfaces.api.app import api
from holdfast.ops.service import Operations
from tests.support.stores import ops, place, store

__all__ = ["ops", "place", "store"]

Client = Callable[[str], httpx2.AsyncClient]


@pytest.fixture
async def client(ops: Operations) -> AsyncIterator[Client]:
    """A function from a scope to a client that holds a token of it; the token's name is the scope's."""
    app = api(ops)
    opened: dict[str, httpx2.AsyncClient] = {}
    for scope in ("read", "operate", "admin"):
        made = await ops.create_token(scope, scope=scope, actor="root")
        opened[scope] = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app),
            base_url="http://holdfast.test/api/v1",
            headers={"authorization": f"Bearer {made.secret}"},
        )
    yield opened.__getitem__
    for one in opened.values():
        await one.aclose()
