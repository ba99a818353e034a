"""Every screen: full and empty, under a prefix, with hostile content, and with the command that shows the same."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import quote
from uuid import UUID

import httpx2
import pytest
from structlog.testing import capture_logs

from holdfast.core.change import DeadLetter
from holdfast.core.telemetry.correlation import correlate
from holdfast.interfaces.console.app import PAGES
from holdfast.interfaces.console.template_env import static_file
from holdfast.ops.service import Operations
from holdfast.outbound.webhooks.endpoint import new_endpoint
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.stores.admin.actions import block_consumer, pause_queue
from holdfast.stores.admin.plan import Action
from holdfast.stores.deliveries.progress import ReportedProgress, report_progress
from holdfast.stores.groups.group import NewGroup, NewMember, start_group
from holdfast.stores.integrations.breaker import trip_breaker
from holdfast.stores.integrations.idempotency import Reservation, reserve
from holdfast.stores.integrations.webhook import add_endpoint
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter, deliveries
from tests.console.conftest import ClientAs, post
from tests.console.shop import BROKEN, WORKER
from tests.support.builders import claim_all, failure, finish, fresh_id, job, message, put, register_consumers

LISTS = [path for path in PAGES if "{" not in path and path not in ("/find", "/requests", "/search")]
BOTH = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)
ONE = pytest.mark.parametrize("place", ["sqlite"], indirect=True)
EVIL = "</pre><script>alert(1)</script><img src=x onerror=alert(2)>\"'{{1237*4567}}"


@BOTH
async def test_every_screen_of_an_empty_store_teaches_the_next_command(client_as: ClientAs) -> None:
    async with client_as("viewer") as client:
        for path in LISTS:
            page = await client.get(f"/ops{path}")
            assert page.status_code == 200, path
            assert '<div class="empty">' in page.text, path
            assert "holdfast " in page.text, path


@BOTH
async def test_the_pages_of_a_running_delivery_and_of_its_group_show_its_progress(
    client_as: ClientAs, store: Store
) -> None:
    members = [NewMember(job(), 0, 0)]
    group = await store.run(start_group(NewGroup(fresh_id(), "a job", None, members), Fanout(), own=True))
    (claimed,) = await claim_all(store)
    await store.run(report_progress([ReportedProgress(claimed.id, claimed.fence, 0.4, "charging <b>")]))
    async with client_as("viewer") as client:
        delivery = await client.get(f"/ops/deliveries/{claimed.id}")
        of_group = await client.get(f"/ops/job-groups/{group.id}")
    assert '<progress max="1" value="0.4"' in delivery.text
    for page in (delivery, of_group):
        assert "40 %" in page.text
        assert "charging &lt;b&gt;" in page.text


@BOTH
async def test_every_screen_and_every_link_on_it_answers_under_a_prefix(client_as: ClientAs, shop: Store) -> None:
    async with client_as("admin") as client:
        seen: set[str] = set()
        waiting = [f"/ops{path}" for path in LISTS]
        while waiting:
            path = waiting.pop()
            kind = re.sub(r"[0-9a-f-]{36}|=[^&]*", "", path)
            if kind in seen:
                continue
            seen.add(kind)
            page = await client.get(path, follow_redirects=True)
            assert page.status_code == 200, path
            waiting += [
                link for link in map(unescape, re.findall(r'href="([^"#]+)"', page.text)) if link.startswith("/ops/")
            ]
            assert not [
                link
                for link in re.findall(r'(?:href|action|src)="(/[^"]*)"', page.text)
                if not link.startswith("/ops/")
            ]
    assert {"/ops/deliveries/", "/ops/messages/", "/ops/requests?id"} <= seen
    assert len(seen) > 25


@BOTH
async def test_the_overview_says_first_what_is_broken_how_many_alike_and_since_which_generation(
    client_as: ClientAs, shop: Store
) -> None:
    async with client_as("operator") as client:
        page = (await client.get("/ops/")).text
        group = re.search(r'href="(/ops/dead\?group=[^"]+)"', page)
        assert group
        listed = (await client.get(unescape(group[1]))).text
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", unescape(page)))
    assert text.index(f"{BROKEN} dead letters") < text.index("Alerts") < text.index("Throughput")
    assert "KeyError in stock" in text
    assert "generation 42" in text
    assert "9 for receipts TimeoutError smtp.mail.example did not answer" in text
    assert "search cluster is unavailable" in text
    assert "queue paused, " in text
    assert listed.count("<tr data-row") == BROKEN


@BOTH
async def test_a_timeline_shows_request_message_run_and_death_in_order(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    found = (await ops.deliveries(Filter(dead=True, consumers=("stock",)), limit=1))[0]
    async with client_as("viewer") as client:
        page = (await client.get(f"/ops/deliveries/{found.delivery.id}")).text
    titles = re.findall(r"<strong>(Request|Published|Accepted|Attempt 1: failed|Dead letter)</strong>", page)
    assert titles == ["Request", "Published", "Accepted", "Attempt 1: failed", "Dead letter"]
    assert "Traceback (most recent call last)" in page
    assert "please gift-wrap" in page


@BOTH
async def test_one_request_is_followed_by_its_id_through_messages_runs_replays_and_audit(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    dead = (await ops.deliveries(Filter(dead=True, consumers=("stock",)), limit=1))[0].delivery.id
    message = (await ops.delivery(dead)).message
    assert message
    await ops.replay([dead], actor="grace", reason="shelf is back")
    with correlate(request_id=message.headers["request_id"]):
        await ops.pause_consumer("stock", actor="grace")
    async with client_as("viewer") as client:
        wanted = {"q": message.headers["request_id"]}
        found = (await client.get("/ops/find", params=wanted, follow_redirects=True)).text
        nothing = (await client.get("/ops/find", params={"q": "req-unknown"}, follow_redirects=True)).text
    assert "order.placed" in found
    assert all(consumer in found for consumer in ("billing", "stock", "receipts", "search"))
    assert "Attempt 1: failed" in found
    assert "Replayed by grace" in found
    assert "pause consumer" in found
    assert "No results" in nothing


@ONE
async def test_an_id_is_found_for_every_kind_of_item(client_as: ClientAs, shop: Store, ops: Operations) -> None:
    one = (await ops.deliveries(limit=1))[0].delivery
    async with client_as("viewer") as client:
        for id, where in ((one.id, "deliveries"), (one.message_id, "messages")):
            answer = await client.get("/ops/find", params={"q": f" {id} "})
            assert answer.headers["location"] == f"/ops/{where}/{id}"


@ONE
async def test_pages_continue_where_the_last_ended_and_filters_stay(client_as: ClientAs, shop: Store) -> None:
    async with client_as("viewer") as client:
        path, ids = "/ops/deliveries?consumer=billing,stock", []
        while path:
            page = (await client.get(path)).text
            ids += re.findall(r'<tr data-row data-key="([^"]+)"', page)
            older = re.search(r'href="([^"]+)" rel="next"', page)
            path = unescape(older[1]) if older else ""
            assert "consumer=billing%2Cstock" in path or not path
    assert len(ids) == len(set(ids)) == 120


@ONE
async def test_a_list_that_scanned_a_part_says_so_and_continues(
    client_as: ClientAs, shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.queries.pagination.STRETCH", 10)
    async with client_as("viewer") as client:
        at_once = (await client.get("/ops/deliveries?type=order.cancelled")).text
        assert "No matches" in at_once, "the server continues the scan"
        monkeypatch.setattr("holdfast.ops.queries.pages._SCAN_SECONDS", 0)
        path, pages = "/ops/deliveries?type=order.cancelled", []
        while path:
            pages.append(page := (await client.get(path)).text)
            older = re.search(r'href="([^"]+)" rel="next"', page)
            path = unescape(older[1]) if older else ""
    assert all("Search older entries" in page for page in pages[:-1])
    assert "No matches" in pages[-1]
    assert 5 < len(pages) < 40


@ONE
async def test_a_filter_by_a_name_that_does_not_exist_says_so(client_as: ClientAs, shop: Store) -> None:
    async with client_as("viewer") as client:
        for path, sentence in (
            ("/dead?consumer=biling", "No consumer 'biling' in this store; did you mean 'billing'? registered: "),
            ("/deliveries?queue=mial", "No queue 'mial' in this store; did you mean 'mail'? known: "),
            ("/audit?action=discrad", "No action 'discrad' in this store; did you mean 'discard'? known: "),
            ("/audit?target=queue:mial", "No queue 'mial' in this store; did you mean 'mail'? known: "),
        ):
            answer = await client.get(f"/ops{path}")
            assert (answer.status_code, sentence in unescape(answer.text)) == (200, True), path
        assert "Nothing matches this filter" in (await client.get("/ops/deliveries?queue=mail&since=0s")).text


@ONE
@pytest.mark.parametrize(
    "query", ["status=odd", "before=1", "since=1h&until=2h", "since=soon", "type=a..b", "consumer=%00", "before=%ff"]
)
async def test_a_filter_that_makes_no_sense_is_answered_with_a_sentence(
    client_as: ClientAs, shop: Store, query: str
) -> None:
    async with client_as("viewer") as client:
        answer = await client.get(f"/ops/deliveries?{query}")
    assert answer.status_code in (200, 400)
    assert "Internal error" not in answer.text


@BOTH
async def test_script_in_every_field_stays_text(client_as: ClientAs, store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.placed"]})
    evil = message(payload={EVIL: EVIL}, key=EVIL, headers={"request_id": EVIL, "note": EVIL})
    await put(store, evil)
    (claimed,) = await claim_all(store, WORKER)
    broken = type(f"Evil{EVIL}", (RuntimeError,), {})
    await finish(store, claimed, DeadLetter(), WORKER, error=failure(EVIL, broken))
    await store.run(pause_queue("default", EVIL, EVIL))
    await store.run(block_consumer("billing", EVIL, timedelta(hours=1), EVIL))
    await store.run(trip_breaker("partner", timedelta(hours=1), EVIL, EVIL))
    await store.run(
        add_endpoint(new_endpoint("https://a.example/%3Cscript%3E", events=["order.*"], options=WebhookOptions()), EVIL)
    )
    await store.run(
        reserve(Reservation(EVIL, EVIL, "h", "o", "POST", f"/{EVIL}"), timedelta(hours=1), timedelta(days=1))
    )
    plan = await ops.plan_replay(Filter(dead=True), actor=EVIL, reason=EVIL)
    await ops.start_plan(plan.id, actor=EVIL, reason=EVIL)
    paths = [f"{path}" for path in LISTS]
    paths += [f"/deliveries/{claimed.id}", f"/messages/{evil.id}", f"/plans/{plan.id}", f"/requests?id={quote(EVIL)}"]
    paths += [
        f"{path}?{name}={quote(EVIL)}" for path in LISTS for name in ("consumer", "target", "tenant", "scope", "state")
    ]
    hostile = 0
    async with client_as("admin", name=EVIL) as client:
        for path in paths:
            page = await client.get(f"/ops{path}")
            assert "<script>alert" not in page.text, path
            assert "<img" not in page.text, path
            assert "5649379" not in page.text, path
            hostile += "&lt;script&gt;alert" in page.text
        answer = await post(client, "/queues/resume", name=EVIL)
        assert "<script>alert" not in answer.text
    assert hostile > 20


@ONE
async def test_a_change_is_reported_once_and_as_text(client_as: ClientAs, shop: Store) -> None:
    async with client_as("operator") as client:
        answer = await post(client, "/queues/pause", name="payments", reason=EVIL)
        assert answer.headers["location"] == "/ops/queues"
        assert "Queue payments paused" in (await client.get("/ops/queues")).text
        assert "Queue payments paused" not in (await client.get("/ops/queues")).text
        client.cookies.set("holdfast_said", quote(EVIL), domain="shop.test", path="/ops/")
        assert "<script>alert" not in (await client.get("/ops/queues")).text


@ONE
async def test_a_page_that_fails_says_so_and_reveals_nothing(
    client_as: ClientAs, shop: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret-7")

    monkeypatch.setattr("holdfast.interfaces.console.stats_cache.StatsCache.stats", broken)
    async with client_as("viewer") as client:
        with capture_logs() as logged:
            answer = await client.get("/ops/")
    assert answer.status_code == 500
    assert "secret-7" not in answer.text
    (entry,) = [one for one in logged if "error_id" in one]
    assert str(entry["error_id"]) in answer.text
    assert "exc_info" not in entry


@ONE
async def test_a_store_that_is_out_is_said_plainly_and_its_password_is_not(client_as: ClientAs) -> None:
    from holdfast.console import console
    from holdfast.stores.postgres.store import PostgresStore

    gone = PostgresStore("postgresql://ada:hunter2@127.0.0.1:1/nowhere")
    app = console(Operations(gone), actor=lambda _: ("ada", "viewer"))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://shop.test") as client:
        answer = await client.get("/")
    await gone.close()
    assert answer.status_code == 503
    assert "Store error" in answer.text
    assert "hunter2" not in answer.text


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_every_text_is_readable_on_what_it_stands_on(scheme: int) -> None:
    css = static_file("console.css")[0].decode()
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", css.split(":root {")[1 + scheme].partition("}")[0]))
    pairs = [
        (text, on)
        for text in ("ink", "quiet", "accent", "good", "bad", "warn", "run")
        for on in ("paper", "card", "soft")
    ]
    pairs += [
        ("ink", "bad-soft"),
        ("accent", "bad-soft"),
        ("warn", "warn-soft"),
        ("accent-ink", "accent"),
        ("card", "bad"),
        ("paper", "ink"),
    ]
    for text, on in pairs:
        light, dark = sorted((luminance(colours[text]), luminance(colours[on])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (text, on)


@ONE
async def test_the_page_of_a_request_leads_on_to_its_other_messages(store: Store, client_as: ClientAs) -> None:
    await register_consumers(store, {"billing": ["order.placed"]})
    await put(store, *(message(headers={"request_id": "r-1"}) for _ in range(23)))
    async with client_as() as visitor:
        first = (await visitor.get("/ops/requests?id=r-1")).text
        (following,) = re.findall(r'href="([^"]*)" rel="next"', first)
        second = (await visitor.get(unescape(following))).text
    assert first.count('<section class="trace"') == 20
    assert second.count('<section class="trace"') == 3
    assert "First messages" in second
    assert 'rel="next"' not in second


@ONE
async def test_the_field_at_the_top_finds_ids_and_any_other_text(client_as: ClientAs, shop: Store) -> None:
    (dead, *_) = await shop.run(deliveries(Filter(dead=True), 1))
    async with client_as("viewer") as client:
        named = await client.get("/ops/find", params={"q": str(dead.delivery.id)})
        assert named.headers["location"] == f"/ops/deliveries/{dead.delivery.id}"
        found = await client.get("/ops/find", params={"q": dead.delivery.consumer})
        assert found.headers["location"] == f"/ops/search?q={dead.delivery.consumer}"
        page = (await client.get(found.headers["location"])).text
        assert f"/ops/deliveries/{dead.delivery.id}" in page
        assert "Searched " in page
        assert (await client.get("/ops/search?q=x")).status_code == 400


@BOTH
@pytest.mark.parametrize("path", ["/messages", "/plans", "/job-groups", "/deliveries", "/dead", "/audit", "/workflows"])
async def test_every_list_has_a_time_range(client_as: ClientAs, shop: Store, ops: Operations, path: str) -> None:
    await ops.create_plan(Action.REPLAY, Filter(dead=True), limit=1, actor="ada")
    await shop.run(start_group(NewGroup(fresh_id(), "a job", None, [NewMember(job(), 0, 0)]), Fanout(), own=True))
    async with client_as("viewer") as client:
        every, hour, old, wrong = [
            await client.get(f"/ops{path}", params=params)
            for params in ({}, {"since": "1h"}, {"until": "1h"}, {"since": "10m", "until": "20m"})
        ]
    assert all(f'href="/ops{path}?since={age}"' in every.text for age in ("15m", "1h", "6h", "1d", "7d"))
    assert hour.text.count("<tr data-row") == every.text.count("<tr data-row")
    assert "<tr data-row" not in old.text
    assert wrong.status_code == 400
    assert "`since` must be before `until`" in unescape(wrong.text)


@BOTH
async def test_a_time_range_ends_the_pages_of_messages(shop: Store, ops: Operations) -> None:
    every = await ops.message_page(limit=100)
    middle = UUID(int=every.items[30].id.int)
    at = datetime.fromtimestamp((middle.int >> 80) / 1000, UTC)
    newer = await ops.message_page(since=at, limit=100)
    older = await ops.message_page(until=at, limit=100)
    assert newer.next is older.next is None
    assert [one.id for one in newer.items + older.items] == [one.id for one in every.items]
    first = await ops.message_page(since=at, limit=1)
    assert (first.next is None) == (len(newer.items) == 1)
    assert [one.id for one in await ops.messages(since=at, limit=100)] == [one.id for one in newer.items]
    assert [one.id for one in await ops.messages(until=at, limit=100)] == [one.id for one in older.items]
