"""A shop's store after failures, and users of its console."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.console import console
from holdfast.ops.service import Operations
from holdfast.stores.protocol import Store
from tests.console.shop import furnish
from tests.support.stores import ops, place, store

__all__ = ["ops", "place", "store"]

ADDRESS = "http://shop.test"
ClientAs = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]


@pytest.fixture
async def shop(store: Store) -> Store:
    await furnish(store)
    return store


@pytest.fixture
def client_as(ops: Operations) -> ClientAs:
    """Opens the console, mounted at /ops, as a user with a role. One page is requested first to get the CSRF cookie."""

    @asynccontextmanager
    async def connect(
        role: str | None = "operator", name: str = "ada", **more: object
    ) -> AsyncIterator[httpx2.AsyncClient]:
        app = Starlette(routes=[Mount("/ops", console(ops, actor=lambda _: role and (name, role), **more))])  # type: ignore[arg-type]
        transport = httpx2.ASGITransport(app)
        async with httpx2.AsyncClient(transport=transport, base_url=ADDRESS, headers={"origin": ADDRESS}) as client:
            await client.get("/ops/workers")
            yield client

    return connect


async def post(client: httpx2.AsyncClient, path: str, **form: str) -> httpx2.Response:
    """Posts a form as a page of the console would."""
    return await client.post(f"/ops{path}", data={"csrf": client.cookies.get("holdfast_console", ""), **form})
