"""Search: every field an operator knows something by, within a bound, and no secrets."""

from datetime import timedelta

import pytest

from holdfast.core.change import DeadLetter, Deliver
from holdfast.core.errors import ConfigurationError
from holdfast.core.redaction.redact import Redaction
from holdfast.ops.queries.search import SearchResult
from holdfast.ops.service import Operations
from holdfast.outbound.webhooks.endpoint import new_endpoint
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.stores.admin.redaction import declare
from holdfast.stores.integrations.breaker import trip_breaker
from holdfast.stores.integrations.webhook import add_endpoint
from holdfast.stores.messages.schedule import save_schedules
from holdfast.stores.protocol import Store
from holdfast.stores.queries import search as scanning
from tests.support.builders import claim_all, failure, finish, message, put, register_consumers
from tests.support.failures import dead_letters

HEADERS = {"tenant": "acme-7", "request_id": "req-11"}


async def shop(store: Store) -> dict[str, str]:
    """A delivered order and a dead one, with something to be found in each field; ids by consumer."""
    await register_consumers(store, {"billing": ["order.placed"], "mailer": ["mail.wanted"]})
    await put(
        store,
        message("order.placed", {"email": "Ada@Example.com", "card": "card-4111"}, key="order:77", headers=HEADERS),
    )
    await put(store, message("mail.wanted", {"to": "bob"}))
    ids = {}
    for claimed in await claim_all(store):
        ids[claimed.consumer] = str(claimed.id)
        if claimed.consumer == "billing":
            await finish(store, claimed, DeadLetter(), error=failure("Payment gateway refused", ConnectionError))
        else:
            await finish(store, claimed, Deliver())
    return ids


def fields(found: SearchResult) -> dict[str, str]:
    return {one.delivery.delivery.consumer: one.field for one in found.matches}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gateway refused", {"billing": "error"}),
        ("GATEWAY", {"billing": "error"}),
        ("ConnectionError", {"billing": "error"}),
        ("order:77", {"billing": "key"}),
        ("order:7", {"billing": "key"}),
        ("acme-7", {"billing": "tenant"}),
        ("req-11", {"billing": "request_id"}),
        ("order.pl", {"billing": "type"}),
        ("mail.wanted", {"mailer": "type"}),
        ("billing", {"billing": "consumer"}),
        ("mailer", {"mailer": "consumer"}),
        ("ada@example", {"billing": "payload"}),
        ("nosuchthing", {}),
        ("100%", {}),
    ],
)
async def test_a_text_is_found_in_every_place(
    store: Store, ops: Operations, text: str, expected: dict[str, str]
) -> None:
    await shop(store)
    found = await ops.search(f"  {text} ")
    assert fields(found) == expected
    assert (found.dead_scanned, found.scanned, found.next) == (None, None, None), "all was looked at"


async def test_a_part_of_an_id_is_enough(store: Store, ops: Operations) -> None:
    ids = await shop(store)
    for part in (ids["mailer"], ids["mailer"][:18], ids["mailer"][-12:], ids["mailer"].replace("-", "")):
        assert fields(await ops.search(part)).get("mailer") == "id", part


async def test_a_failure_group_is_found_by_its_error_and_its_line(store: Store, ops: Operations) -> None:
    await shop(store)
    for text in ("gateway", "connectionerror", "billing", "builders.py"):
        (group,) = (await ops.search(text)).groups
        assert group.consumer == "billing"
    assert (await ops.search("mailer")).groups == ()


async def test_what_was_declared_secret_is_not_found(store: Store, ops: Operations) -> None:
    await shop(store)
    assert fields(await ops.search("card-4111")) == {"billing": "payload"}
    await store.run(declare([Redaction("order.*", "card")]))
    assert fields(await ops.search("card-4111")) == {}


async def test_a_search_stops_after_a_while_says_how_far_it_looked_and_continues(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "STRETCH", 5)
    monkeypatch.setattr("holdfast.ops.queries.search.STRETCH", 5)
    monkeypatch.setattr("holdfast.ops.queries.search._SCAN_SECONDS", 0)
    await shop(store)
    for _ in range(3):
        await put(store, *(message("mail.wanted", {"to": "carl"}) for _ in range(10)))
    first = await ops.search("bob")
    assert (first.matches, first.dead_scanned, first.scanned) == ((), None, 5)
    assert first.back_to is not None
    assert first.next is not None
    found, steps = first, 0
    while not found.matches and found.next is not None:
        found = await ops.search("bob", after=found.next)
        steps += 1
    assert (fields(found), steps) == ({"mailer": "payload"}, 6)


async def test_a_page_is_full_and_its_cursor_can_be_copied_from_a_sentence(store: Store, ops: Operations) -> None:
    await dead_letters(store, 5, consumer="export")
    first = await ops.search("export", limit=2)
    assert len(first.matches) == 2, "the example of the group is one of them"
    assert first.next is not None
    assert not first.next.endswith(".")
    assert (await ops.search("export", limit=2, after=first.next)).matches


@pytest.mark.parametrize("text", ["", " ", "x", "x" * 201])
async def test_a_text_that_is_too_short_or_too_long_is_refused(ops: Operations, text: str) -> None:
    with pytest.raises(ConfigurationError, match="characters"):
        await ops.search(text)


@pytest.mark.parametrize("after", ["", "x", "x.y", ".-.", "01a1de9e-3feb-7141-acf8-3a160ca18709"])
async def test_a_place_to_continue_from_that_cannot_be_read_is_refused(ops: Operations, after: str) -> None:
    with pytest.raises(ConfigurationError, match="the cursor is not valid"):
        await ops.search("boom", after=after)


async def test_items_with_names_are_found(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.placed"]}, queue="payments")
    await register_consumers(store, {"report": []}, queue="nightly")
    await store.run(save_schedules([("report:acme", "0 7 * * *", "UTC", "last"), ("tidy", "0 8 * * *", "UTC", "last")]))
    await store.run(trip_breaker("acme-api", timedelta(minutes=5), "ada", "down"))
    secret = "https://hooks.acme.example/t0ken"
    options = WebhookOptions()
    await store.run(add_endpoint(new_endpoint(secret, events=["order.*"], options=options, tenant="acme-7"), "ada"))

    async def found(text: str) -> list[tuple[str, str]]:
        return [(one.kind, one.name) for one in (await ops.search(text)).items if one.kind != "webhook"]

    assert await found("BILL") == [("consumer", "billing")]
    assert await found("order.placed") == [("consumer", "billing")]
    assert await found("nightly") == [("queue", "nightly")]
    assert await found("acme") == [("breaker", "acme-api"), ("schedule", "report:acme")]
    assert await found("tidy") == [("schedule", "tidy")]
    (endpoint,) = [one for one in (await ops.search("acme-7")).items if one.kind == "webhook"]
    assert endpoint.text == "https://hooks.acme.example/… order.* acme-7"
    assert await found("t0ken") == []
    assert (await ops.search("t0ken")).items == ()
    first = await ops.search("order")
    assert first.items
    if first.next is not None:
        assert (await ops.search("order", after=first.next)).items == ()


async def test_a_search_lists_a_few_items_of_a_kind(store: Store, ops: Operations) -> None:
    await store.run(save_schedules([(f"digest:{n:03}", "0 7 * * *", "UTC", "last") for n in range(30)]))
    assert [one.name for one in (await ops.search("digest")).items] == [f"digest:{n:03}" for n in range(10)]
    assert [one.name for one in (await ops.search("digest:029")).items] == ["digest:029"]
