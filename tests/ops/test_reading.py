"""What operators see: counts, lists, and the whole story of one delivery."""

from datetime import timedelta
from itertools import count

import pytest

from holdfast.core.change import DeadLetter, Deliver
from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError, InvalidName, NotFound
from holdfast.ops.queries.stats import read_conditions
from holdfast.ops.service import Operations
from holdfast.stores.admin.actions import block_consumer, pause_consumer, pause_queue
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from tests.support.builders import (
    age,
    claim_all,
    failure,
    finish,
    fresh_id,
    job,
    message,
    put,
    register_consumers,
    start,
)
from tests.support.failures import dead_letters, one_in_each_state

MINUTE = timedelta(minutes=1)


async def test_stats_count_every_state_but_done(store: Store, ops: Operations) -> None:
    await one_in_each_state(store)
    await put(store, job("export", queue="slow"))
    age(store, MINUTE, "delivery")
    await start(store, "w", ["mail"])
    stats = await ops.stats()
    assert (stats.pending, stats.in_flight, stats.failed, stats.discarded, stats.workers) == (2, 1, 1, 1, 1)
    assert [(load.queue, load.consumer) for load in stats.loads] == [("default", "mail"), ("slow", "export")]
    assert stats.loads[0].lag == timedelta(0), "a retry wait is no lag"
    assert MINUTE <= stats.oldest < 2 * MINUTE
    for text, holds in {
        "failed>0": True,
        "failed>1": False,
        "failed>=1,oldest>1h": True,
        "oldest>30s": True,
        "oldest > 10m": False,
        "workers<1": False,
        "pending=2": True,
    }.items():
        assert any(condition.holds(stats) for condition in read_conditions(text)) is holds, text


@pytest.mark.parametrize("text", ["", "failed", "failed>", "failed>x", "failed>-1", "foo>1", "oldest>5", "failed>1,,"])
def test_conditions_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        read_conditions(text)


async def test_a_dead_letter_is_shown_with_runs_siblings_audit_and_how_many_alike(
    store: Store, ops: Operations
) -> None:
    await register_consumers(store, {"billing": ["order.*"], "mail": ["order.*"]})
    await put(store, *(message(payload={"n": n}, key=f"order:{n}") for n in range(3)))
    for claimed in await claim_all(store):
        broken = claimed.consumer == "billing"
        await finish(store, claimed, DeadLetter() if broken else Deliver(), error=failure() if broken else None)
    first, *_ = await ops.deliveries(Filter(dead=True))
    await ops.replay([first.delivery.id], actor="ada", reason="try")
    for claimed in await claim_all(store):
        await finish(store, claimed, DeadLetter(), error=failure())
    detail = await ops.delivery(first.delivery.id)
    assert detail.message is not None
    assert detail.message.key == first.key
    assert [run.outcome for run in detail.runs] == ["failed", "failed"]
    assert "raise kind(text)" in (detail.runs[-1].trace or "")
    assert [(entry.action, entry.actor, entry.reason) for entry in detail.audit] == [("replay", "ada", "try")]
    assert [(one.delivery.consumer, one.delivery.status) for one in detail.siblings] == [("mail", Status.DELIVERED)]
    assert detail.alike == 3
    (group,) = await ops.failure_groups(consumers=["billing"])
    assert (group.count, group.fingerprint) == (3, detail.listed.delivery.fingerprint)
    assert await ops.failure_groups(consumers=["mail"]) == []


async def test_a_pending_delivery_says_what_it_waits_for(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": []}, queue="slow")
    await put(store, job("mail", queue="slow"))
    (one,) = await ops.deliveries()

    async def obstacles() -> tuple[str, ...]:
        return (await ops.delivery(one.delivery.id)).obstacles

    assert await obstacles() == ("no live worker serves mail",)
    await start(store, "w", ["mail"])
    assert await obstacles() == ("no live worker serves mail on queue slow",)
    await store.run(pause_queue("slow", "ada", None))
    await store.run(pause_consumer("mail", "ada", None))
    await store.run(block_consumer("mail", "smtp", MINUTE, "w"))
    assert (await obstacles())[:3] == (
        "queue slow is paused",
        "consumer mail is paused",
        "consumer mail is blocked: smtp is unavailable",
    )


async def test_a_job_is_found_by_its_delivery_and_by_what_enqueueing_returned(store: Store, ops: Operations) -> None:
    (published,) = await put(store, job("mail"))
    await register_consumers(store, {"billing": ["order.*"]})
    (event,) = await put(store, message())
    (listed,) = await ops.deliveries(Filter(type="job.*"))
    assert (await ops.job(published.id)).listed == listed
    assert (await ops.job(listed.delivery.id)).listed == listed
    (delivered,) = await ops.deliveries(Filter(consumers=("billing",)))
    for id, text in (
        (event.id, f"belongs to the event order.placed: see `holdfast messages show {event.id}`"),
        (delivered.delivery.id, f"see `holdfast deliveries show {delivered.delivery.id}`"),
        (fresh_id(), "no job"),
    ):
        with pytest.raises(NotFound, match=text):
            await ops.job(id)


async def test_a_wrong_kind_of_id_says_what_it_is(store: Store, ops: Operations) -> None:
    (published,) = await put(store, job("mail"))
    (listed,) = await ops.deliveries()
    with pytest.raises(NotFound, match="it is a message"):
        await ops.delivery(published.id)
    with pytest.raises(NotFound, match="it is a delivery"):
        await ops.message(listed.delivery.id)
    with pytest.raises(NotFound, match="pruned"):
        await ops.delivery(fresh_id())


async def test_types_are_filtered_exactly_or_by_prefix(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"all": ["*"]})
    await put(store, *(message(type) for type in ("order", "order.placed", "order.line.added", "orderly.sent")))
    for type, expected in {
        "order.*": {"order.placed", "order.line.added"},
        "order.placed": {"order.placed"},
        "order": {"order"},
        "nothing.*": set(),
    }.items():
        assert {one.type for one in await ops.deliveries(Filter(type=type))} == expected
        assert {one.type for one in await ops.messages(type=type)} == expected
        wanted = Filter(type=type, statuses=(Status.PENDING,))
        plan = await ops.plan_cancel(wanted)
        assert set(plan.preview.types) == expected
    with pytest.raises(InvalidName):
        await ops.deliveries(Filter(type="order%"))


async def test_an_export_pages_through_everything_with_its_messages(store: Store, ops: Operations) -> None:
    ids = await dead_letters(store, 5)
    found = []
    before = None
    while page := await ops.export(Filter(dead=True), limit=2, before=before):
        found += page
        before = page[-1].listed.delivery.id
    assert [one.listed.delivery.id for one in found] == ids[::-1]
    assert {one.message.payload.replace(" ", "") for one in found if one.message} == {f'{{"n":{n}}}' for n in range(5)}


async def test_a_message_is_shown_with_its_deliveries(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"billing": ["order.*"], "mail": ["order.*"]})
    (published,) = await put(store, message(payload={"n": 1}, headers={"request_id": "r-1"}))
    detail = await ops.message(published.id)
    assert [one.delivery.consumer for one in detail.deliveries] == ["billing", "mail"]
    assert detail.message.headers == {"request_id": "r-1"}


async def test_a_failure_group_names_the_deploy_that_ran_it_and_the_line_that_broke(
    store: Store, ops: Operations
) -> None:
    """Published by generation 41, run by 42 and then 43: it began with 42."""
    await register_consumers(store, {"mail": []})
    await start(store, "w42", ["mail"], generation=42)
    await start(store, "w43", ["mail"], generation=43)
    for worker, generation in (("w42", 42), ("w43", 43)):
        await put(store, job("mail", generation=41))
        (claimed,) = await claim_all(store, worker, generation=generation)
        await finish(store, claimed, DeadLetter(), worker, error=failure())
        age(store, MINUTE, "delivery")
    (group,) = await ops.failure_groups()
    assert (group.first_generation, group.last_generation, group.count) == (42, 43, 2)
    assert group.frame is not None
    assert "builders.py:" in group.frame
    assert group.frame.endswith(" in failure")
    assert (await ops.delivery(group.example)).frame == group.frame


async def test_the_runs_of_an_earlier_failure_do_not_name_the_deploy_of_this_one(store: Store, ops: Operations) -> None:
    await register_consumers(store, {"mail": []})
    await start(store, "w42", ["mail"], generation=42)
    await start(store, "w43", ["mail"], generation=43)
    await put(store, job("mail"))
    for worker in ("w42", "w43"):
        (claimed,) = await claim_all(store, worker, generation=43)
        await finish(store, claimed, DeadLetter(), worker, error=failure())
        if worker == "w42":
            age(store, MINUTE, "run")
            await ops.replay([claimed.id], actor="ada")
    (group,) = await ops.failure_groups()
    assert (group.first_generation, group.last_generation) == (43, 43)


async def test_a_failure_of_unknown_deploy_names_none(store: Store, ops: Operations) -> None:
    await dead_letters(store, 1)
    (group,) = await ops.failure_groups()
    assert (group.first_generation, group.last_generation) == (None, None)


async def test_dead_letters_of_a_rare_type_are_found_behind_many_others(
    store: Store, ops: Operations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind 60 others in stretches of three, in a time that is over at once."""
    monkeypatch.setattr("holdfast.stores.queries.pagination.STRETCH", 3)
    await dead_letters(store, 1, "rare")
    await dead_letters(store, 60, "mail")
    clock = count()
    found = await ops.delivery_page(Filter(dead=True, type="job.rare"), timer=lambda: next(clock))
    assert [one.delivery.consumer for one in found.items] == ["rare"]
