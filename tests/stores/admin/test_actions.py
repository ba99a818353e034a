"""What operators do: discard, cancel, pause and block; each act says who did it and why."""

from datetime import timedelta

import orjson
import pytest

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError, InvalidName, NotFound
from holdfast.stores.admin.actions import (
    audit,
    block_consumer,
    cancel,
    discard,
    pause_consumer,
    pause_queue,
    record,
    resume_consumer,
    resume_queue,
    unblock_consumer,
)
from holdfast.stores.deliveries.worker import forget_cancellations, renew_and_read
from holdfast.stores.messages.registry import consumers
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import clock
from tests.support.builders import (
    SECOND,
    age,
    all_deliveries,
    claim_all,
    claim_one,
    delivery,
    failure,
    finish,
    job,
    put,
    register_consumers,
    start,
)

HOUR = timedelta(hours=1)


async def test_a_discard_sets_dead_letters_aside_and_keeps_their_story(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, DeadLetter(), error=failure("boom"))
    before = await delivery(store, claimed.id)
    assert await store.run(discard([claimed.id], "ada", "duplicate order")) == {claimed.id}
    after = await delivery(store, claimed.id)
    assert after.discarded_at is not None
    assert (after.status, after.fence, after.last_error) == (Status.FAILED, before.fence + 1, "boom")
    assert after.completed_at == before.completed_at
    (entry,) = await store.run(audit())
    assert (entry.actor, entry.action, entry.kind, entry.target, entry.reason) == (
        "ada",
        "discard",
        "delivery",
        str(claimed.id),
        "duplicate order",
    )


async def test_discarding_twice_discards_once(store: Store) -> None:
    claimed = await claim_one(store)
    await finish(store, claimed, DeadLetter(), error=failure())
    await store.run(discard([claimed.id], "ada", None))
    before = await delivery(store, claimed.id)
    assert await store.run(discard([claimed.id], "bob", None)) == frozenset()
    assert await delivery(store, claimed.id) == before
    assert len(await store.run(audit())) == 1


async def test_only_dead_letters_are_discarded(store: Store) -> None:
    await put(store, job("waiting", delay=HOUR), job("running"), job("retrying"), job("done"))
    claims = {c.consumer: c for c in await claim_all(store)}
    await finish(store, claims["retrying"], Retry(HOUR), error=failure())
    await finish(store, claims["done"], Deliver())
    before = await all_deliveries(store)
    assert await store.run(discard([d.id for d in before], "ada", None)) == frozenset()
    assert await all_deliveries(store) == before
    assert await store.run(audit()) == []


async def test_a_pending_delivery_can_be_cancelled(store: Store) -> None:
    await put(store, job(delay=HOUR))
    (before,) = await all_deliveries(store)
    assert await store.run(cancel([before.id], "ada", "customer left")) == {before.id}
    after = await delivery(store, before.id)
    assert (after.status, after.fence, after.last_error) == (Status.FAILED, 1, "customer left")
    assert after.completed_at == after.discarded_at is not None
    assert not after.dead, "it is neither counted nor alerted as failed"
    (entry,) = await store.run(audit())
    assert (entry.actor, entry.action, entry.reason) == ("ada", "cancel", "customer left")


async def test_the_worker_of_a_cancelled_run_reads_it_with_its_lease_until_it_has_received_it(store: Store) -> None:
    await start(store, "w1", ["job"])
    claimed = await claim_one(store)
    await put(store, job("waiting", delay=HOUR))
    others = [d.id for d in await all_deliveries(store) if d.id != claimed.id]
    assert await store.run(renew_and_read("w1", HOUR)) == (True, None)
    await store.run(cancel([claimed.id, *others], "ada", None))
    read = orjson.dumps([[str(claimed.id), claimed.fence]])
    renewed, text = await store.run(renew_and_read("w1", HOUR))
    assert (renewed, orjson.loads(text or "")) == (True, orjson.loads(read))
    await store.run(forget_cancellations("w1", [(claimed.id, claimed.fence + 1)]))
    assert (await store.run(renew_and_read("w1", HOUR)))[1] == text
    await store.run(forget_cancellations("w1", [(claimed.id, claimed.fence)]))
    assert await store.run(renew_and_read("w1", HOUR)) == (True, None)


async def test_cancelling_what_is_in_flight_raises_its_fence(store: Store) -> None:
    claimed = await claim_one(store)
    assert await store.run(cancel([claimed.id], "ada", None)) == {claimed.id}
    after = await delivery(store, claimed.id)
    assert (after.status, after.fence, after.last_error) == (Status.FAILED, claimed.fence + 1, "cancelled")
    assert (after.locked_by, after.lease_until) == (None, None)
    assert not await finish(store, claimed, Deliver())


async def test_what_has_ended_is_not_cancelled(store: Store) -> None:
    await put(store, job("done"), job("dead"))
    claims = {c.consumer: c for c in await claim_all(store)}
    await finish(store, claims["done"], Deliver())
    await finish(store, claims["dead"], DeadLetter(), error=failure())
    before = await all_deliveries(store)
    assert await store.run(cancel([d.id for d in before], "ada", None)) == frozenset()
    assert await all_deliveries(store) == before


async def test_cancelling_twice_cancels_once(store: Store) -> None:
    claimed = await claim_one(store)
    await store.run(cancel([claimed.id], "ada", None))
    before = await delivery(store, claimed.id)
    assert await store.run(cancel([claimed.id], "bob", None)) == frozenset()
    assert await delivery(store, claimed.id) == before


async def test_acts_on_nothing_do_nothing(store: Store) -> None:
    assert await store.run(cancel([], "ada", None)) == frozenset()
    assert await store.run(discard([], "ada", None)) == frozenset()
    assert await store.run(audit()) == []


async def test_pausing_and_resuming_is_audited(store: Store) -> None:
    await register_consumers(store, {"mail": []})
    await store.run(pause_queue("slow", "ada", "deploy"))
    await store.run(pause_consumer("mail", "ada", "deploy"))
    assert await store.run(resume_queue("slow", "bob", None))
    assert await store.run(resume_consumer("mail", "bob", None))
    acts = [(e.actor, e.action, e.kind, e.target, e.reason) for e in reversed(await store.run(audit()))]
    assert acts == [
        ("ada", "pause", "queue", "slow", "deploy"),
        ("ada", "pause", "consumer", "mail", "deploy"),
        ("bob", "resume", "queue", "slow", None),
        ("bob", "resume", "consumer", "mail", None),
    ]


async def test_resuming_what_is_not_paused_changes_nothing(store: Store) -> None:
    await register_consumers(store, {"mail": []})
    assert not await store.run(resume_queue("slow", "ada", None))
    assert not await store.run(resume_consumer("mail", "ada", None))
    assert not await store.run(unblock_consumer("mail", "ada"))
    assert await store.run(audit()) == []


async def test_pausing_again_keeps_the_first_time(store: Store) -> None:
    await register_consumers(store, {"mail": []})
    await store.run(pause_consumer("mail", "ada", None))
    (first,) = await store.run(consumers())
    await store.run(pause_consumer("mail", "bob", None))
    (second,) = await store.run(consumers())
    assert second.paused_at == first.paused_at is not None


async def test_blocking_holds_a_consumer_for_a_while_and_says_why(store: Store) -> None:
    await register_consumers(store, {"mail": []})
    before = await store.run(clock())
    await store.run(block_consumer("mail", "smtp", SECOND, "worker-1"))
    (blocked,) = await store.run(consumers())
    assert blocked.blocked_until is not None
    assert before + SECOND <= blocked.blocked_until <= await store.run(clock()) + SECOND
    assert blocked.blocked_resource == "smtp"
    assert await store.run(unblock_consumer("mail", "ada"))
    (free,) = await store.run(consumers())
    assert (free.blocked_until, free.blocked_resource) == (None, None)
    acts = [(e.actor, e.action, e.reason) for e in reversed(await store.run(audit()))]
    assert acts == [("worker-1", "block", "smtp is unavailable"), ("ada", "unblock", None)]


async def test_the_longer_an_outage_lasts_the_longer_is_the_pause(store: Store) -> None:
    await register_consumers(store, {"mail": []})

    async def blocked_for() -> float:
        (one,) = await store.run(consumers())
        assert one.blocked_until is not None
        return (one.blocked_until - await store.run(clock())).total_seconds()

    assert (await store.run(block_consumer("mail", "smtp", 5 * SECOND, "w1"))).began
    assert 4 < await blocked_for() <= 5
    age(store, 40 * SECOND, "consumer")
    began, pause = await store.run(block_consumer("mail", "smtp", 5 * SECOND, "w1"))
    assert (began, 19 < pause.total_seconds() <= 21) == (False, True)
    assert 19 < await blocked_for() <= 21
    age(store, 3600 * SECOND, "consumer")
    await store.run(block_consumer("mail", "smtp", 5 * SECOND, "w1"))
    assert 59 < await blocked_for() <= 60
    assert await store.run(unblock_consumer("mail", "w1"))
    assert (await store.run(block_consumer("mail", "smtp", 5 * SECOND, "w1"))).began
    assert 4 < await blocked_for() <= 5
    acts = [entry.action for entry in reversed(await store.run(audit()))]
    assert acts == ["block", "unblock", "block"]


async def test_an_unknown_consumer_cannot_be_paused_or_blocked(store: Store) -> None:
    with pytest.raises(NotFound, match="nobody"):
        await store.run(pause_consumer("nobody", "ada", None))
    with pytest.raises(NotFound, match="nobody"):
        await store.run(block_consumer("nobody", "smtp", SECOND, "ada"))
    assert await store.run(audit()) == []


async def test_a_queue_name_that_could_mislead_is_refused(store: Store) -> None:
    for name in ('a"b', "a$$b", "a.b", "a\nb", ""):
        with pytest.raises(InvalidName):
            await store.run(pause_queue(name, "ada", None))


async def test_every_act_names_its_actor(store: Store) -> None:
    await register_consumers(store, {"mail": []})
    claimed = await claim_one(store)
    for act in (
        cancel([claimed.id], " ", None),
        discard([claimed.id], "", None),
        pause_queue("slow", "", None),
        pause_consumer("mail", "", None),
        record("", "export", "plan", "7"),
    ):
        with pytest.raises(ConfigurationError, match="actor"):
            await store.run(act)
    assert await store.run(audit()) == []
    assert (await store.run(consumers()))[0].paused_at is None, "an act without an actor leaves no trace"


async def test_the_audit_is_read_in_pages_and_by_target(store: Store) -> None:
    for n in range(5):
        await store.run(record("ada", "export", "plan", str(n % 2), f"r{n}", {"n": n, "name": 'a"b'}))
    first = await store.run(audit(limit=3))
    rest = await store.run(audit(limit=3, before=first[-1].id))
    assert [entry.reason for entry in (*first, *rest)] == ["r4", "r3", "r2", "r1", "r0"]
    assert first[0].detail == {"n": 4, "name": 'a"b'}
    assert [entry.reason for entry in await store.run(audit(target=("plan", "1")))] == ["r3", "r1"]
    assert await store.run(audit(target=("queue", "1"))) == []
