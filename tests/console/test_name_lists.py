"""Lists of names: filtered, paged, and the same on every screen."""

import re
from datetime import timedelta

import pytest

from holdfast.core.change import DeadLetter
from holdfast.interfaces.console.pages import failures
from holdfast.interfaces.console.request import PAGE
from holdfast.outbound.webhooks.endpoint import new_endpoint
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.stores.deliveries.worker import start_worker
from holdfast.stores.integrations.breaker import trip_breaker
from holdfast.stores.integrations.webhook import add_endpoint
from holdfast.stores.protocol import Store
from tests.console.conftest import ClientAs
from tests.support.builders import claim_all, failure, finish, job, put, register_consumers

ONE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
MANY = 2 * PAGE + 5


def _keys(page: str) -> list[str]:
    return re.findall(r'data-row data-key="([^"]*)"', page)


@ONE
@pytest.mark.parametrize("path", ["/queues", "/consumers", "/breakers", "/webhooks", "/workers"])
async def test_a_long_list_of_names_is_read_page_by_page(client_as: ClientAs, store: Store, path: str) -> None:
    for n in range(MANY):
        match path:
            case "/breakers":
                await store.run(trip_breaker(f"partner-{n}", timedelta(hours=1), "ada", "down"))
            case "/webhooks":
                url = f"https://hooks.acme.example/{n}"
                endpoint = new_endpoint(url, events=["order.*"], options=WebhookOptions(), tenant=f"t{n}")
                await store.run(add_endpoint(endpoint, "ada"))
            case "/workers":
                await store.run(start_worker(f"web-{n}/1/x", 1, [], ["mail"], timedelta(hours=1)))
            case _:
                await register_consumers(store, {f"c{n}": ["order.placed"]}, queue=f"q{n}")
    async with client_as("viewer") as client:
        seen, sizes, address = list[str](), list[int](), f"/ops{path}"
        while address:
            page = (await client.get(address)).text
            sizes.append(len(_keys(page)))
            seen += _keys(page)
            following = re.search(r'href="([^"]*)" rel="next"', page)
            address = following[1].replace("&amp;", "&") if following else ""
    assert sizes == [PAGE, PAGE, 5]
    assert len(set(seen)) == MANY


@ONE
@pytest.mark.parametrize(
    ("path", "found", "hidden"),
    [
        ("/queues?name=WARE", ["warehouse"], 4),
        ("/queues?state=paused", ["mail"], 4),
        ("/consumers?queue=payments", ["billing"], 6),
        ("/consumers?name=order.placed", ["billing", "stock"], 5),
        ("/consumers?state=blocked", ["search"], 6),
        ("/breakers?state=open", ["partner"], 0),
        ("/breakers?state=closed", [], 1),
        ("/workers?consumer=stock", ["web-1/4711/ab12cd"], 1),
        ("/workers?state=gone", ["web-0/811/ffe012"], 1),
        ("/workers?since=1h", ["web-1/4711/ab12cd", "web-0/811/ffe012"], 0),
        ("/workers?until=1h", [], 2),
        ("/breakers?since=1h", ["partner"], 0),
        ("/breakers?until=1h", [], 1),
        ("/groups?consumer=billing", None, 1),
        ("/groups?error=kettle", None, 1),
        ("/groups?since=1h", None, 0),
    ],
)
async def test_a_list_of_names_is_filtered(
    client_as: ClientAs, shop: Store, path: str, found: list[str] | None, hidden: int
) -> None:
    async with client_as("viewer") as client:
        every, some = (await client.get(f"/ops{path.partition('?')[0]}")).text, (await client.get(f"/ops{path}")).text
        wrong = await client.get("/ops/queues?state=broken")
    if found is not None:
        assert _keys(some) == found
    assert len(_keys(every)) - len(_keys(some)) == hidden
    assert ("No matches" in some) == (found == [])
    assert wrong.status_code == 400


@ONE
async def test_endpoints_are_filtered_by_tenant_and_address(client_as: ClientAs, shop: Store) -> None:
    async with client_as("viewer") as client:
        for query, count in (("tenant=acme", 1), ("tenant=globex", 0), ("text=hooks.acme", 1), ("state=disabled", 0)):
            assert len(_keys((await client.get(f"/ops/webhooks?{query}")).text)) == count, query


@ONE
async def test_many_failure_groups_are_read_page_by_page(
    client_as: ClientAs, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "_GROUPS", 2)
    await put(store, *(job(f"job{n}") for n in range(5)))
    for claimed in await claim_all(store):
        await finish(store, claimed, DeadLetter(), error=failure())
    async with client_as("viewer") as client:
        seen, address = list[str](), "/ops/groups?since=1h"
        while address:
            page = (await client.get(address)).text
            seen += _keys(page)
            following = re.search(r'href="([^"]*)" rel="next"', page)
            address = following[1].replace("&amp;", "&") if following else ""
        none = (await client.get("/ops/groups?until=1h")).text
    assert len(seen) == len(set(seen)) == 5
    assert "No matches" in none
