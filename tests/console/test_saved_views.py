"""Saved views: named links to a page with its filter, kept by the browser and used without a script."""

import re
from html import unescape

import httpx2
import pytest

from holdfast.stores.protocol import Store
from tests.console.conftest import ClientAs, post

ONE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


async def _views(client: httpx2.AsyncClient, path: str = "/ops/audit") -> dict[str, str]:
    page = (await client.get(path)).text
    if "Saved views" not in page:
        return {}
    part = page[page.index("Saved views") :].partition("</section>")[0]
    return {unescape(name): unescape(link) for link, name in re.findall(r'<a href="([^"]*)"[^>]*>([^<]*)</a>', part)}


@ONE
async def test_a_filter_is_saved_under_a_name_and_removed(client_as: ClientAs, shop: Store) -> None:
    async with client_as("viewer", read_only=True) as client:
        page = (
            await client.get("/ops/dead?consumer=billing&since=1d&before=01a1de9e-3feb-7141-acf8-3a160ca18709")
        ).text
        (address,) = re.findall(r'name="address" value="([^"]*)"', page)
        assert unescape(address) == "/dead?consumer=billing&since=1d"
        saved = await post(client, "/views/save", name=" Billing & <co> ", address=unescape(address))
        assert (saved.status_code, saved.headers["location"]) == (303, "/ops/dead?consumer=billing&since=1d")
        await post(client, "/views/save", name="Paused", address="/queues?state=paused")
        assert await _views(client) == {
            "Billing & <co>": "/ops/dead?consumer=billing&since=1d",
            "Paused": "/ops/queues?state=paused",
        }
        page = (await client.get("/ops/queues?state=paused")).text
        assert "Remove saved view" in page
        assert page.count('aria-current="page"') == 1
        await post(client, "/views/save", name="Paused", address="/consumers?state=paused")
        assert (await _views(client))["Paused"] == "/ops/consumers?state=paused"
        for name in ("Paused", "Billing & <co>"):
            await post(client, "/views/remove", name=name)
        assert await _views(client) == {}


@ONE
async def test_a_view_of_the_deliveries_without_a_tenant_is_saved(client_as: ClientAs, shop: Store) -> None:
    """An empty tenant selects them; in other filters an empty field selects nothing and is left out."""
    async with client_as("viewer") as client:
        for query in ("?tenant=", "?by=header%3Aorg_id&tenant="):
            page = (await client.get(f"/ops/tenants{query}")).text
            (address,) = re.findall(r'name="address" value="([^"]*)"', page)
            assert unescape(address) == f"/tenants{query}"
            saved = await post(client, "/views/save", name="No tenant", address=unescape(address))
            assert saved.headers["location"] == f"/ops/tenants{query}"
            assert "Remove saved view" in (await client.get(saved.headers["location"])).text
        assert "Save view" not in (await client.get("/ops/webhooks?tenant=")).text


@ONE
async def test_a_page_without_a_filter_offers_no_view(client_as: ClientAs, shop: Store) -> None:
    async with client_as("viewer") as client:
        assert "Save view" not in (await client.get("/ops/dead")).text
        for form in ({"name": "x", "address": "/dead"}, {"name": " ", "address": "/dead?since=1d"}, {"name": "x" * 41}):
            assert (await post(client, "/views/save", **form)).status_code == 400
        assert await _views(client) == {}


@ONE
async def test_a_view_leads_to_no_other_site(client_as: ClientAs, shop: Store) -> None:
    async with client_as("viewer") as client:
        for address in ("//evil.test/?a=1", "https://evil.test/?a=1", "javascript:alert(1)?a=1", "/../x?a=1"):
            assert (await post(client, "/views/save", name="x", address=address)).status_code == 400, address
        refused = await client.post("/ops/views/save", data={"name": "x", "address": "/dead?since=1d"})
        assert refused.status_code == 403
        client.cookies.set("holdfast_views", "a=%2F%2Fevil.test%2F%3Fa%3D1&b=javascript%3Aalert(1)&=x&c", path="/ops/")
        assert await _views(client) == {}


@ONE
async def test_the_room_of_the_cookie_is_limited(client_as: ClientAs, shop: Store) -> None:
    async with client_as("viewer") as client:
        answers = [
            (await post(client, "/views/save", name=f"view {n}", address=f"/dead?since={n + 1}d")).status_code
            for n in range(25)
        ]
        assert answers == [303] * 20 + [400] * 5
        long = await post(client, "/views/save", name="view 1", address="/dead?type=" + "x" * 4000)
        assert long.status_code == 400
