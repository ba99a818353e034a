"""Keys of consumers with flow control, as operators see and change them."""

from datetime import timedelta

import pytest

from holdfast.core.change import DeadLetter, Retry
from holdfast.core.errors import ConfigurationError, NotFound, Refused
from holdfast.core.flow import FlowSettings, effective_flow
from holdfast.core.redaction.redact import Redaction
from holdfast.interfaces.presentation.views import view
from holdfast.ops.queries.flow_keys import Hold, KeyFilter, KeyPage, KeyState
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import discard
from holdfast.stores.messages.registry import Declaration, EventSubscription, find_consumer, register
from holdfast.stores.protocol import Store
from tests.support.builders import age, failure, finish, message, put, register_consumers, sql
from tests.support.flow import BY_TENANT, LIMITED, ORDERED, RATED, claim_next, furnish_flow


async def mail(store: Store, flow: FlowSettings, *tenants: str) -> None:
    await furnish_flow(store, "mail", flow, *tenants)


async def key_of(ops: Operations, key: str) -> KeyState:
    (found,) = [one for one in (await ops.keys("mail")).keys if one.key == key]
    return found


def names(page: KeyPage) -> list[str]:
    return [one.key for one in page.keys]


async def test_a_key_at_its_limit_says_so(store: Store, ops: Operations) -> None:
    await mail(store, LIMITED, "a", "a", "a", "a", "b")
    await claim_next(store, "mail", 2)
    page = await ops.keys("mail")
    assert [(one.key, one.waiting, one.due, one.running, one.hold) for one in page.keys] == [
        ("a", 2, 2, 2, Hold.LIMIT),
        ("b", 1, 1, 0, None),
    ]
    assert (page.keys[0].why, page.running, page.flow.key, page.flow.limit) == ("limit of 2 reached", 2, "tenant", 2)
    assert names(await ops.keys("mail", state=KeyFilter.LIMITED)) == ["a"]
    assert names(await ops.keys("mail", state=KeyFilter.RUNNING)) == ["a"]


async def test_a_key_at_its_rate_says_when_the_next_token_is_due(store: Store, ops: Operations) -> None:
    await mail(store, RATED, "a", "b")
    now = await ops.now()
    bucket = str(round(now.timestamp() * 1000)) if store.dialect.name == "sqlite" else f"'{now.isoformat()}'"
    sql(store, f"insert into {{hf}}flow_start (consumer, flow_key, bucket, n) values ('mail', 'a', {bucket}, 2)")
    found = await key_of(ops, "a")
    assert (found.hold, found.why) == (Hold.RATE, "rate of 2/1h reached")
    assert found.next_at is not None
    assert abs(found.next_at - now - timedelta(minutes=61, seconds=12)) < timedelta(seconds=1)
    assert names(await ops.keys("mail", state=KeyFilter.RATED)) == ["a"]
    assert (await key_of(ops, "b")).hold is None


async def test_a_dead_head_blocks_its_key_until_it_is_discarded(store: Store, ops: Operations) -> None:
    await mail(store, ORDERED, "a", "a", "b")
    (head,) = await claim_next(store, "mail")
    assert (await key_of(ops, "a")).hold is Hold.ORDER, "one at a time"
    assert await finish(store, head, DeadLetter(), error=failure())
    found = await key_of(ops, "a")
    assert (found.hold, found.blocked_by, found.waiting) == (Hold.DEAD_LETTER, head.id, 1)
    assert found.why == f"blocked by dead letter {head.id}; replay or discard it"
    assert names(await ops.keys("mail", state=KeyFilter.BLOCKED)) == ["a"]
    await store.run(discard([head.id], "ada", None))
    assert (await key_of(ops, "a")).blocked_by is None
    assert names(await ops.keys("mail", state=KeyFilter.BLOCKED)) == []


async def test_a_dead_letter_behind_the_head_or_with_skip_does_not_block(store: Store, ops: Operations) -> None:
    await mail(store, ORDERED, "a", "a", "a")
    first, second = await claim_next(store, "mail", 2)
    await finish(store, second, DeadLetter(), error=failure())
    await finish(store, first, Retry(timedelta(hours=1)), error=failure())
    found = await key_of(ops, "a")
    assert (found.hold, found.blocked_by, found.waiting, found.due) == (Hold.RETRY, None, 2, 1)
    assert found.next_at is not None
    skipping = FlowSettings(key=BY_TENANT, order="skip")
    await store.run(register([Declaration("mail", flow=skipping.text)], [], 0))
    (again,) = await claim_next(store, "mail")
    await finish(store, again, DeadLetter(), error=failure())
    assert (await key_of(ops, "a")).blocked_by is None


async def test_a_page_continues_after_its_last_key(store: Store, ops: Operations) -> None:
    tenants = ["a", "ab", "a b", "é", "b", "", "ä"]
    await mail(store, LIMITED, *tenants)
    found, after = [], None
    while True:
        page = await ops.keys("mail", limit=2, after=after)
        found += names(page)
        if page.next is None:
            break
        after = page.next
    assert found == sorted(tenants)
    assert names(await ops.keys("mail", prefix="a")) == ["a", "a b", "ab"]
    assert names(await ops.keys("mail", prefix="a", after="a", limit=1)) == ["a b"]
    assert names(await ops.keys("mail", prefix="z")) == []


async def test_keys_of_all_lanes_are_listed_and_counted(store: Store, ops: Operations) -> None:
    await mail(store, LIMITED, "a", "a", "a", "b")
    sql(
        store,
        "update {hf}delivery set priority = 2 where id = (select id from {hf}delivery where flow_key = 'a' limit 1)",
    )
    sql(store, "update {hf}delivery set generation = 7, queue = 'other' where flow_key = 'b'")
    page = await ops.keys("mail")
    assert [(one.key, one.waiting) for one in page.keys] == [("a", 3), ("b", 1)]


async def test_a_consumer_without_a_key_has_one(store: Store, ops: Operations) -> None:
    await mail(store, FlowSettings(limit=2), "a", "a", "a")
    (one,) = (await ops.keys("mail")).keys
    assert (one.key, one.waiting, one.hold) == ("", 3, None)
    sql(store, "update {hf}consumer set flow_override = '{\"limit\": 1}'")
    await claim_next(store, "mail")
    sql(store, "update {hf}delivery set flow_key = '' where status = 'in_flight'")
    page = await ops.keys("mail")
    assert (page.keys[0].hold, page.keys[0].why, page.keys[0].running) == (Hold.LIMIT, "limit of 1 reached", 1)
    assert page.obstacles == ("consumer mail has reached its limit of 1",)
    assert (page.flow.limit, page.flow.declared_limit) == (1, 2)


async def test_the_page_names_what_holds_up_every_key(store: Store, ops: Operations) -> None:
    flow = FlowSettings(limit=1).text
    await store.run(
        register(
            [Declaration("mail", flow=LIMITED.text)],
            [EventSubscription("mail.placed", "mail")],
            0,
            (),
            {"default": flow},
        )
    )
    await put(store, message("mail.placed", {"tenant": "a"}))
    await ops.pause_consumer("mail", actor="ada")
    await ops.pause_queue("default", actor="ada")
    await claim_next(store, "mail")
    assert (await ops.keys("mail")).obstacles == (
        "queue default is paused",
        "consumer mail is paused",
        "queue default has reached its limit of 1",
    )


async def test_an_operator_changes_a_limit_and_returns_to_the_declared_one(store: Store, ops: Operations) -> None:
    both = FlowSettings(key=BY_TENANT, limit=2, limit_by_key=True, rate_count=90, rate_window=timedelta(seconds=10))
    await mail(store, both)

    async def used() -> tuple[int | None, int | None, timedelta | None]:
        stored = await store.run(find_consumer("mail"))
        assert stored is not None
        settings = effective_flow(stored.flow or "", stored.flow_override)
        return settings.limit, settings.rate_count, settings.rate_window

    assert await ops.limit_consumer("mail", limit=5, actor="ada", reason="the provider is faster")
    assert not await ops.limit_consumer("mail", limit=5, actor="ada")
    assert await ops.limit_consumer("mail", rate="10/1m", actor="ada")
    assert await used() == (5, 10, timedelta(minutes=1))
    assert await ops.limit_consumer("mail", rate="20/1m", reset=True, actor="ada")
    assert await used() == (2, 20, timedelta(minutes=1))
    # A deploy keeps the operator's value.
    await store.run(register([Declaration("mail", queue="other", flow=both.text)], [], 1))
    assert await used() == (2, 20, timedelta(minutes=1))
    assert await ops.limit_consumer("mail", reset=True, actor="ada")
    assert await used() == (2, 90, timedelta(seconds=10))
    assert not await ops.limit_consumer("mail", reset=True, actor="ada")
    entries = await ops.audit(target=("consumer", "mail"))
    assert [(one.action, one.actor) for one in entries] == [("limit", "ada")] * 4
    assert (entries[-1].reason, entries[-1].detail) == (
        "the provider is faster",
        {"before": None, "after": {"limit": 5}},
    )


async def test_an_operator_changes_the_limit_of_a_queue(store: Store, ops: Operations) -> None:
    await store.run(register([], [], 0, (), {"mail": FlowSettings(limit=3).text}))
    assert await ops.limit_queue("mail", limit=1, actor="ada")
    with pytest.raises(Refused, match="queue mail: it is declared without a rate; add rate=Rate"):
        await ops.limit_queue("mail", rate="1/1s", actor="ada")
    with pytest.raises(NotFound):
        await ops.limit_queue("male", limit=1, actor="ada")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "nothing to change"),
        ({"limit": 0}, "limit is 0; give a whole number from 1"),
        ({"rate": "fast"}, "write a count and a window"),
        ({"rate": "1/0s"}, "at least 100ms"),
    ],
)
async def test_a_wrong_value_is_refused(store: Store, ops: Operations, given: dict[str, object], text: str) -> None:
    await mail(store, LIMITED)
    with pytest.raises(ConfigurationError, match=text):
        await ops.limit_consumer("mail", actor="ada", **given)  # type: ignore[arg-type]


async def test_a_paused_key_waits_and_resuming_makes_its_next_delivery_due_now(store: Store, ops: Operations) -> None:
    await mail(store, LIMITED, "a", "a", "b")
    age(store, timedelta(hours=1), "delivery")
    assert await ops.pause_key("mail", "a", actor="ada", reason="their server is down")
    assert not await ops.pause_key("mail", "a", actor="ada")
    found = await key_of(ops, "a")
    assert (found.hold, found.why) == (Hold.PAUSED, "the key is paused")
    assert names(await ops.keys("mail", state=KeyFilter.PAUSED)) == ["a"]
    assert await ops.resume_key("mail", "a", actor="ada")
    assert not await ops.resume_key("mail", "a", actor="ada")
    assert (await key_of(ops, "a")).hold is None
    old = await ops.now() - timedelta(minutes=30)
    rows = sql(store, "select flow_key, run_at from {hf}delivery order by id")
    aged = [str(key) for key, at in rows if (at / 1000 if isinstance(at, int) else at.timestamp()) < old.timestamp()]  # type: ignore[attr-defined]
    assert sorted(aged) == ["a", "b"], "only the next one moved"
    entries = await ops.audit(target=("consumer", "mail"))
    assert [(one.action, one.detail, one.reason) for one in reversed(entries)] == [
        ("pause-key", {"key": "a"}, "their server is down"),
        ("resume-key", {"key": "a"}, None),
    ]


async def test_resuming_does_not_hurry_a_retry(store: Store, ops: Operations) -> None:
    await mail(store, ORDERED, "a", "a")
    (head,) = await claim_next(store, "mail")
    await finish(store, head, Retry(timedelta(hours=1)), error=failure())
    await ops.pause_key("mail", "a", actor="ada")
    await ops.resume_key("mail", "a", actor="ada")
    assert (await key_of(ops, "a")).hold is Hold.RETRY


async def test_what_cannot_be_paused_is_refused(store: Store, ops: Operations) -> None:
    await mail(store, LIMITED, "a")
    await register_consumers(store, {"plain": []})
    with pytest.raises(NotFound, match=r"consumer mail has no deliveries with it; force .--force. pauses it anyway"):
        await ops.pause_key("mail", "A", actor="ada")
    assert await ops.pause_key("mail", "A", actor="ada", force=True)
    assert names(await ops.keys("mail", state=KeyFilter.PAUSED)) == ["A"]
    with pytest.raises(Refused, match="declared without flow control; consumers with flow control: mail"):
        await ops.pause_key("plain", "a", actor="ada")
    with pytest.raises(NotFound, match="consumers with flow control: mail"):
        await ops.keys("mial")
    await store.run(register([Declaration("mail", flow=FlowSettings(limit=1).text)], [], 0))
    with pytest.raises(Refused, match="use `consumers pause mail`"):
        await ops.pause_key("mail", "a", actor="ada")


async def test_a_long_key_is_paused_by_its_value(store: Store, ops: Operations) -> None:
    await mail(store, LIMITED, "x" * 300)
    assert await ops.pause_key("mail", "x" * 300, actor="ada")
    (found,) = (await ops.keys("mail")).keys
    assert found.key.startswith("hash:")
    assert found.paused_at is not None


async def test_counts_are_lower_bounds_above_a_thousand(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.stores.queries.flow_keys.MAX_COUNT", 3)
    await mail(store, LIMITED, *("a" * 1 for _ in range(5)))
    (found,) = (await ops.keys("mail")).keys
    assert f"{found.waiting:,}" == "3+"
    shown = view(found)
    assert isinstance(shown, dict)
    assert shown["at_least"] == ["waiting", "due"]


@pytest.mark.parametrize("path", ["tenant", "*", "**.tenant", "tenant.name"])
async def test_keys_that_another_app_redacts_are_not_shown(store: Store, ops: Operations, path: str) -> None:
    await mail(store, ORDERED, "a@b.test", "a@b.test")
    (head,) = await claim_next(store, "mail")
    await finish(store, head, DeadLetter(), error=failure())
    await ops.pause_key("mail", "a@b.test", actor="ada")
    await store.run(register([], [], 0, [Redaction("mail.*", path)]))
    with pytest.raises(Refused, match="it is keyed by tenant, which is redacted"):
        await ops.keys("mail")
    for one in (await ops.delivery_page()).items:
        detail = await ops.delivery(one.delivery.id)
        assert detail.flow_key == "[redacted]"
        assert "a@b.test" not in str(detail.obstacles)
    assert "a@b.test" not in str(await ops.doctor())


@pytest.mark.parametrize("declared", [("other.*", "tenant"), ("*", "email"), ("*", "**.password"), ("*", "tenants")])
async def test_keys_are_shown_if_another_field_or_type_is_redacted(
    store: Store, ops: Operations, declared: tuple[str, str]
) -> None:
    await mail(store, LIMITED, "a")
    await store.run(register([], [], 0, [Redaction(*declared)]))
    assert names(await ops.keys("mail")) == ["a"]
