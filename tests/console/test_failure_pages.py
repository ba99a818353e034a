"""The page of a failure group with its inputs, the comparison of payloads, and the live tail."""

import re
from dataclasses import replace
from datetime import timedelta
from html import unescape

import pytest

from holdfast.core.change import Deliver
from holdfast.core.delivery import Status
from holdfast.interfaces.console.pages.overview import failure_group_cards
from holdfast.ops.service import Operations
from holdfast.stores.admin.plan import Action
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.console.conftest import ClientAs
from tests.support.builders import claim_all, finish, message, put

BOTH = pytest.mark.parametrize("place", ["sqlite", "postgres18"], indirect=True)


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", unescape(page)))


@pytest.mark.parametrize(
    ("age_of_failure", "serves", "grows"), [(30, True, True), (30, False, False), (90, True, False)]
)
async def test_a_group_is_still_failing_only_while_a_live_worker_fails(
    ops: Operations, shop: Store, age_of_failure: int, serves: bool, grows: bool
) -> None:
    now = await ops.now()
    group = replace((await ops.failure_groups())[0], last_failed_at=now - timedelta(seconds=age_of_failure))
    workers = [replace(one, alive=serves) for one in await ops.workers()]
    (card,) = failure_group_cards([group], workers, now)
    assert card.is_growing is grows


@BOTH
async def test_the_page_of_a_group_answers_what_broke_since_when_how_many_and_which_inputs(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    group = (await ops.failure_groups())[0]
    async with client_as("operator") as client:
        page = (await client.get("/ops/dead", params={"group": group.fingerprint, "consumer": "stock"})).text
    text = text_of(page)
    assert "KeyError in stock" in text.replace("  ", " ")
    assert "28 dead letters" in text
    assert "since just now" in text
    assert "first failed in generation" in text
    assert text.index("Preview replay of 10") < text.index("Preview replay of 28"), "a sample first"
    assert "28 in" in text[text.index("Failures") :]
    assert "a worker of generation 42 started" in text
    assert 'class="deploy"' in page
    assert "Replays of this group" not in text
    assert "No field has a value that only failures have" in text
    inputs = text_of(page[page.index('id="inputs"') :].partition("</details>")[0])
    assert 'note "please gift-wrap"' in inputs.replace("  ", " ")
    assert "only in failures" not in inputs
    assert f"/ops/compare?left={group.example}" in page


@BOTH
async def test_the_page_of_a_group_lists_its_replays_and_how_they_ended(
    client_as: ClientAs, shop: Store, ops: Operations
) -> None:
    group = (await ops.failure_groups())[0]
    wanted = Filter(dead=True, group=group.fingerprint, consumers=("stock",))
    plan = await ops.create_plan(Action.REPLAY, wanted, limit=10, actor="ada")
    await ops.start_plan(plan.id, actor="ada", reason="a sample first")
    await ops.advance_plans(runner="test")
    (*_, last) = sorted(await claim_all(shop, consumers=["stock"], generation=42, limit=10), key=lambda one: one.id)
    await finish(shop, last, Deliver())
    await ops.follow_plans()
    async with client_as("operator") as client:
        page = (await client.get("/ops/dead", params={"group": group.fingerprint, "consumer": "stock"})).text
        other = (await client.get("/ops/dead", params={"consumer": "billing"})).text
    text = text_of(page)
    assert f"/ops/plans/{plan.id}" in page
    assert "10 deliveries replayed 1 delivered, 0 dead again, 9 not ended" in text
    assert "18 dead letters" in text
    assert f"/ops/plans/{plan.id}" not in other


@BOTH
async def test_the_failures_of_a_group_are_counted_by_time(shop: Store, ops: Operations) -> None:
    group, now = (await ops.failure_groups())[0], await ops.now()
    slots = await ops.group_trend(
        "stock", str(group.fingerprint), since=now - timedelta(hours=1), until=now + timedelta(minutes=1)
    )
    assert sum(one.died for one in slots) == group.count == 28
    none = await ops.group_trend("billing", str(group.fingerprint), since=now - timedelta(hours=1), until=now)
    assert sum(one.died for one in none) == 0


@BOTH
async def test_two_payloads_are_compared_by_field(client_as: ClientAs, shop: Store, ops: Operations) -> None:
    dead = (await ops.deliveries(Filter(dead=True, consumers=("stock",)), limit=1))[0].delivery
    done = (await ops.deliveries(Filter(statuses=(Status.DELIVERED,), consumers=("stock",)), limit=1))[0].delivery
    async with client_as("viewer") as client:
        default = text_of((await client.get("/ops/compare", params={"left": str(dead.id)})).text)
        chosen = text_of((await client.get("/ops/compare", params={"left": str(dead.id), "right": str(done.id)})).text)
        same = text_of((await client.get("/ops/compare", params={"left": str(dead.id), "right": str(dead.id)})).text)
        other = text_of((await client.get("/ops/compare", params={"left": str(done.id)})).text)
        wrong = await client.get("/ops/compare", params={"left": "7"})
        missing = await client.get("/ops/compare", params={"left": str(dead.message_id)})
    assert "≠ order_id" in default
    assert "≠ order_id" in chosen
    assert "of 4 fields differ" in default
    assert "≠ note" not in default
    assert "≠ order_id" in other  # not with itself
    assert "0 of 4 fields differ" in same
    assert wrong.status_code == 400
    assert missing.status_code == 404


@BOTH
async def test_the_tail_shows_the_newest_changes_first(client_as: ClientAs, shop: Store, ops: Operations) -> None:
    await put(shop, message(type="order.cancelled"))
    async with client_as("viewer") as client:
        page = (await client.get("/ops/tail")).text
        failed = (await client.get("/ops/tail", params={"status": "failed", "consumer": "billing"})).text
        wrong = await client.get("/ops/tail", params={"status": "broken"})
    assert "order.cancelled" in page
    assert page.count("<tr data-row") == 100
    assert "More changed than this page shows" in page
    assert failed.count("<tr data-row") == failed.count("PermissionError") == 4
    assert "holdfast tail --status failed --consumer billing" in failed
    assert wrong.status_code == 400
