"""The pages of flow control: consumers, their keys, and what holds a key up."""

from html import unescape

import pytest

from holdfast.core.flow import FlowSettings
from holdfast.ops.service import Operations
from holdfast.stores.messages.registry import Declaration, register
from holdfast.stores.protocol import Store
from tests.console.conftest import ClientAs, post
from tests.support.flow import LIMITED, furnish_flow, furnish_keys

BOTH = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)
ONE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)


@BOTH
async def test_a_blocked_key_links_to_its_dead_letter(client_as: ClientAs, store: Store) -> None:
    head = await furnish_keys(store)
    async with client_as("operator") as client:
        assert "/ops/flow?consumer=sync" in (await client.get("/ops/flow")).text
        assert "/ops/flow?consumer=sync" in (await client.get("/ops/consumers")).text
        shown = unescape((await client.get("/ops/flow?consumer=sync")).text)
        assert "order by tenant, block on dead" in shown
        assert f'href="/ops/deliveries/{head}"' in shown
        assert all(name in shown for name in ("acme", "globex", "initech"))
        blocked = (await client.get("/ops/flow?consumer=sync&state=blocked")).text
        assert "acme" in blocked
        assert "initech" not in blocked
        assert "holdfast consumers keys sync --state blocked" in blocked
        prefixed = (await client.get("/ops/flow?consumer=sync&prefix=g")).text
        assert 'data-key="globex"' in prefixed
        assert 'data-key="acme"' not in prefixed


@ONE
async def test_many_keys_are_read_page_by_page(client_as: ClientAs, store: Store) -> None:
    await furnish_flow(store, "sync", LIMITED, *(f"t{n:03}" for n in range(120)), "")
    async with client_as("viewer") as client:
        seen, path = [], "/ops/flow?consumer=sync"
        while path:
            text = unescape((await client.get(path)).text)
            seen += [part.partition('"')[0] for part in text.split('data-key="')[1:]]
            path = text.partition('" rel="next">')[0].rpartition('href="')[2] if 'rel="next"' in text else ""
    assert seen == ["", *(f"t{n:03}" for n in range(120))]


@BOTH
async def test_a_key_is_paused_and_resumed_also_the_empty_one(
    client_as: ClientAs, store: Store, ops: Operations
) -> None:
    await furnish_flow(store, "sync", LIMITED, "acme", "")
    async with client_as("operator") as client:
        for key in ("acme", ""):
            answer = await post(client, "/consumers/pause-key", name=key, consumer="sync", reason="why")
            assert (answer.status_code, answer.headers["location"]) == (303, "/ops/flow?consumer=sync")
        assert "paused" in (await client.get("/ops/flow?consumer=sync")).text
        assert all(one.paused_at for one in (await ops.keys("sync")).keys)
        assert (await post(client, "/consumers/resume-key", name="", consumer="sync")).status_code == 303
    assert [one.paused_at is None for one in (await ops.keys("sync")).keys] == [True, False]


@ONE
async def test_limits_are_changed_with_the_form_and_refused_with_a_remedy(
    client_as: ClientAs, store: Store, ops: Operations
) -> None:
    await furnish_flow(store, "sync", LIMITED, "acme")
    await store.run(register([Declaration("plain")], [], 0, (), {"default": FlowSettings(limit=3).text}))
    async with client_as("operator") as client:
        assert 'name="limit"' in (await client.get("/ops/flow?consumer=sync")).text
        assert (await post(client, "/consumers/limit", name="sync", limit="7", rate="", reason="")).status_code == 303
        shown = (await client.get("/ops/flow?consumer=sync")).text
        assert "limit 7 by tenant (declared 2)" in shown
        assert "Return to the declared values" in shown
        assert 'name="limit"' in (await client.get("/ops/queues")).text
        for form in ({"limit": "many"}, {"limit": "0"}, {"rate": "fast"}, {}):
            answer = await post(client, "/consumers/limit", name="sync", **form)
            assert answer.status_code == 400, form
        assert (await post(client, "/consumers/limit", name="sync", rate="1/1s")).status_code == 409
        assert (await client.get("/ops/flow?consumer=plain")).status_code == 409
        assert (await client.get("/ops/flow?consumer=none")).status_code == 404
        assert (await client.get("/ops/flow?consumer=sync&state=what")).status_code == 400
        assert (await post(client, "/consumers/limit", name="sync", reset="yes")).status_code == 303
    page = await ops.keys("sync")
    assert (page.flow.limit, page.flow.is_changed) == (2, False)


@ONE
async def test_a_viewer_sees_keys_and_changes_nothing(client_as: ClientAs, store: Store) -> None:
    await furnish_keys(store)
    async with client_as("viewer") as client:
        assert '<details class="act">' not in (await client.get("/ops/flow?consumer=sync")).text
        assert (await post(client, "/consumers/pause-key", name="acme", consumer="sync")).status_code == 403
