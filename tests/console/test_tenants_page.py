"""The page of tenants, and what the search finds by name."""

import re
from html import unescape

import pytest

from holdfast.core.change import DeadLetter
from holdfast.interfaces.console.request import PAGE
from holdfast.stores.protocol import Store
from tests.console.conftest import ClientAs
from tests.support.builders import claim_all, failure, finish, message, put, register_consumers
from tests.support.flow import furnish_keys

BOTH = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)
ONE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


def _rows(page: str) -> dict[str, list[str]]:
    """The counts of each row, by the text of its first cell."""
    found = {}
    for row in page.split("<tr data-row")[1:]:
        cells = [
            " ".join(unescape(re.sub(r"<[^>]*>", " ", cell)).split())
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)
        ]
        found[cells[0]] = cells[1:]
    return found


@BOTH
async def test_tenants_are_listed_with_what_waits_and_failed(client_as: ClientAs, store: Store) -> None:
    await register_consumers(store, {"billing": ["order.placed"], "mail": ["order.placed"]})
    await put(store, *(message(headers={"tenant": "acme <b>"}) for _ in range(3)), message())
    for claimed in (await claim_all(store, consumers=["billing"]))[:4]:
        await finish(store, claimed, DeadLetter(), error=failure())
    async with client_as("viewer") as client:
        page = (await client.get("/ops/tenants")).text
        one = (await client.get("/ops/tenants", params={"tenant": "acme <b>"})).text
        unnamed = (await client.get("/ops/tenants?tenant=")).text
        some = (await client.get("/ops/tenants?name=ACME")).text
        refused = await client.get("/ops/tenants?by=customer.id")
    assert _rows(page) == {"acme <b>": ["3", "0", "3"], "(none)": ["1", "0", "1"]}
    assert list(_rows(some)) == ["acme <b>"]
    assert "Counted in 8 deliveries" in page
    assert _rows(one) == {"billing": ["0", "0", "3"], "mail": ["3", "0", "0"]}
    assert "/ops/webhooks?tenant=acme+%3Cb%3E" in one
    assert _rows(unnamed) == {"billing": ["0", "0", "1"], "mail": ["1", "0", "0"]}
    assert refused.status_code == 409
    assert "not the key of a consumer" in refused.text


@ONE
async def test_the_next_page_of_deliveries_without_a_tenant_is_of_them(client_as: ClientAs, store: Store) -> None:
    names = [f"c{n:02}" for n in range(PAGE + 1)]
    await register_consumers(store, {name: ["order.placed"] for name in names})
    await put(store, message(), message(headers={"tenant": "acme"}))
    async with client_as("viewer") as client:
        page = (await client.get("/ops/tenants?tenant=")).text
        (following,) = {unescape(link) for link in re.findall(r'href="([^"]*after=[^"]*)"', page)}
        rest = (await client.get(following)).text
    assert sorted([*_rows(page), *_rows(rest)]) == names


@ONE
async def test_a_tenant_that_is_a_key_leads_to_its_limits(client_as: ClientAs, store: Store) -> None:
    await furnish_keys(store)
    async with client_as("viewer") as client:
        assert "/ops/tenants?by=tenant" in (await client.get("/ops/tenants")).text
        page = (await client.get("/ops/tenants?by=tenant")).text
        one = unescape((await client.get("/ops/tenants?by=tenant&tenant=acme")).text)
    assert _rows(page) == {"acme": ["2", "0", "1"], "globex": ["1", "0", "0"], "initech": ["1", "0", "0"]}
    assert "/ops/flow?consumer=sync&prefix=acme" in one


@ONE
async def test_a_search_leads_to_the_pages_of_names(client_as: ClientAs, shop: Store) -> None:
    async with client_as("viewer") as client:
        for text, link in (
            ("warehouse", "/ops/queues?name=warehouse"),
            ("nightly", "/ops/schedules?prefix=nightly_report"),
            ("acme", "/ops/webhooks?text="),
            ("partner", "/ops/breakers?name=partner"),
            ("receipts", "/ops/consumers?name=receipts"),
        ):
            page = unescape((await client.get("/ops/search", params={"q": text})).text)
            (found,) = {part for part in re.findall(r'href="([^"]*)"', page) if part.startswith(link)}
            assert (await client.get(found)).text.count("<tr data-row") == 1
