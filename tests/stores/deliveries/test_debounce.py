"""Debounce in the store: the newest delivery of a key stands for all, after the quiet time or the longest wait."""

import time
from datetime import timedelta
from typing import Any
from uuid import UUID

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.delivery import Delivery, Status
from holdfast.stores.admin.actions import replay
from holdfast.stores.deliveries.claim import Claimed, lanes
from holdfast.stores.deliveries.debounce import DebounceClaim, claim_debounced
from holdfast.stores.deliveries.flow import adopt_deliveries, unkeyed_deliveries
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.flow import DeliveryKey
from holdfast.stores.messages.prune import FROM_THE_START, prune_deliveries
from holdfast.stores.protocol import Store
from tests.stores.flow_cases import declare, deliver, lane_of, numbers, send, settings
from tests.support.builders import LEASE, SECOND, age, all_deliveries, expire, failure, finish, job, put, sql, start

QUIET = settings(debounce="5s", max_wait="1m", by="k")
NONE = DebounceClaim([], 0, 0)


async def take(
    store: Store, size: int = 100, *, worker: str = "w1", suspects: bool = False, name: str = "mail"
) -> DebounceClaim:
    """Claims from the only lane of the consumer; nothing if it has none."""
    found = await store.run(lanes([name], 0, suspects=suspects))
    if not found:
        return NONE
    (lane,) = found
    return await store.run(claim_debounced(lane, worker, LEASE, size, suspects=suspects))


async def settled(store: Store, **given: Any) -> list[Claimed]:
    """Claims until nothing changes any more, as a worker does."""
    claims: list[Claimed] = []
    while (found := await take(store, **given)).claims or found.changed:
        claims += found.claims
    return claims


async def superseded(store: Store) -> list[Delivery]:
    return [d for d in await all_deliveries(store) if d.discarded_at is not None]


def _discarded(store: Store) -> int:
    return int(str(sql(store, "select count(*) from {hf}delivery where discarded_at is not null")[0][0]))


def pass_time(store: Store, seconds: float) -> None:
    age(store, timedelta(seconds=seconds), "delivery")


async def test_the_newest_runs_after_the_quiet_time_and_supersedes_the_others(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a", "a", "a", "b")
    assert await settled(store) == []
    pass_time(store, 4)
    assert await settled(store) == []
    pass_time(store, 1.1)
    claims = await settled(store)
    assert numbers(claims) == [2, 3]
    newest = next(c.id for c in claims if numbers([c]) == [2])
    old = await superseded(store)
    assert [(d.status, d.dead, d.last_error, d.error_type) for d in old] == [
        (Status.FAILED, False, f"superseded by {newest}", "superseded")
    ] * 2
    assert all(d.locked_by is None and d.attempts == 0 and d.completed_at is not None for d in old)
    assert {
        (d.attempts, d.fence, d.locked_by) for d in await all_deliveries(store) if d.status is Status.IN_FLIGHT
    } == {(1, 1, "w1")}


async def test_each_publish_starts_the_quiet_time_again(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a")
    for number in range(5):
        pass_time(store, 4)
        assert await settled(store) == []
        await put(store, job("mail", {"k": "a", "n": number + 1}), fanout=Fanout(flows={"mail": QUIET}))
    pass_time(store, 5.1)
    assert numbers(await settled(store)) == [5]


async def test_it_runs_at_the_latest_after_the_longest_wait(store: Store) -> None:
    await declare(store, QUIET)
    runs: list[tuple[int, list[int]]] = []
    await put(store, job("mail", {"k": "a", "n": 0}), fanout=Fanout(flows={"mail": QUIET}))
    began, aged = time.monotonic(), 0.0
    for second in range(4, 68, 4):
        # The time that the statements take counts as well, and adds up. SQLite stores whole milliseconds, so that each
        # step may lose a part of one.
        more = second + 0.1 - aged - (time.monotonic() - began)
        pass_time(store, more)
        aged += more
        await put(store, job("mail", {"k": "a", "n": second}), fanout=Fanout(flows={"mail": QUIET}))
        if claims := await settled(store):
            runs.append((second, numbers(claims)))
            await deliver(store, *claims)
    assert runs == [(60, [60])]


async def test_the_oldest_keeps_the_time_and_what_is_between_goes_early(store: Store) -> None:
    await declare(store, QUIET)
    for number in range(4):
        await put(store, job("mail", {"k": "a", "n": number}), fanout=Fanout(flows={"mail": QUIET}))
        pass_time(store, 2)
    assert await settled(store) == []
    found = await all_deliveries(store)
    assert sorted(d.status for d in found) == [Status.FAILED, *[Status.PENDING] * 3]
    oldest = min(found, key=lambda d: d.created_at)
    assert timedelta(seconds=59) < oldest.run_at - oldest.created_at < timedelta(seconds=61)


async def test_without_a_longest_wait_it_is_ten_times_the_quiet_time(store: Store) -> None:
    flow = settings(debounce="5s")
    await declare(store, flow)
    await send(store, flow, "a")
    pass_time(store, 44)
    await send(store, flow, "b")
    pass_time(store, 4)
    await send(store, flow, "c")
    assert await settled(store) == []
    pass_time(store, 3)
    assert len(await settled(store)) == 1
    assert len(await superseded(store)) == 2


async def test_one_delivery_of_a_key_runs_at_a_time(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a")
    pass_time(store, 6)
    (first,) = await settled(store)
    await send(store, QUIET, "a", "a")
    pass_time(store, 90)
    await start(store, "w1", ["mail"])
    assert await settled(store, worker="w2") == []
    await deliver(store, first)
    assert numbers(await settled(store, worker="w2")) == [1]


async def test_what_waits_behind_a_run_is_reduced_to_two(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a")
    pass_time(store, 6)
    (first,) = await settled(store)
    await send(store, QUIET, *["a"] * 5)
    pass_time(store, 6)
    assert await settled(store) == []
    assert len(await superseded(store)) == 3
    await deliver(store, first)
    assert numbers(await settled(store)) == [4]


async def test_a_failed_run_is_retried_unless_a_newer_one_stands_for_it(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a", "b")
    pass_time(store, 6)
    for claimed in await settled(store):
        assert await finish(store, claimed, Retry(SECOND * 10), error=failure())
    await put(store, job("mail", {"k": "a", "n": 9}), fanout=Fanout(flows={"mail": QUIET}))
    assert await settled(store) == []
    pass_time(store, 6)
    assert numbers(await settled(store)) == [9]
    pass_time(store, 6)
    assert numbers(await settled(store)) == [1]
    assert [d.attempts for d in await superseded(store)] == [1]


async def test_an_expired_run_is_taken_over_and_then_superseded(store: Store) -> None:
    from holdfast.stores.deliveries.claim import rescue

    await declare(store, QUIET)
    await start(store, "w1", ["mail"])
    await send(store, QUIET, "a")
    pass_time(store, 6)
    assert len(await settled(store)) == 1
    await send(store, QUIET, "a", "a")
    pass_time(store, 6)
    expire(store)
    assert await settled(store, worker="w2") == []
    ((taken, _),) = await store.run(rescue("w2", LEASE, 10))
    assert await finish(store, taken, Retry(timedelta(0)), "w2", error=failure())
    assert numbers(await settled(store, worker="w2")) == [1]
    assert len(await superseded(store)) == 2


async def test_a_replayed_dead_letter_runs_or_is_superseded(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a", "b")
    pass_time(store, 6)
    dead = await settled(store)
    for claimed in dead:
        assert await finish(store, claimed, DeadLetter(), error=failure())
    await put(store, job("mail", {"k": "a", "n": 9}), fanout=Fanout(flows={"mail": QUIET}))
    await store.run(replay([c.id for c in dead], "ada", "fixed"))
    assert numbers(await settled(store)) == [1]
    pass_time(store, 6)
    assert numbers(await settled(store)) == [9]


async def test_many_old_ones_are_superseded_a_thousand_at_a_time_before_the_newest_runs(store: Store) -> None:
    await declare(store, QUIET)
    messages = [job("mail", {"k": "hot", "n": number}) for number in range(2_200)]
    await put(store, *messages, fanout=Fanout(flows={"mail": QUIET}))
    await put(store, job("mail", {"k": "other", "n": -1}), fanout=Fanout(flows={"mail": QUIET}))
    pass_time(store, 6)
    first = await take(store)
    assert (first.changed, numbers(first.claims)) == (1000, [])
    assert _discarded(store) == 1000
    rest = await settled(store)
    assert sorted(numbers(rest)) == [-1, 2_199]
    assert _discarded(store) == 2_199


async def test_a_claim_supersedes_a_thousand_of_all_its_keys_together(store: Store) -> None:
    """Without this bound a claim of many keys changes as many rows as there are."""
    await declare(store, QUIET)
    messages = [job("mail", {"k": f"k{number % 3}", "n": number}) for number in range(1_500)]
    await put(store, *messages, fanout=Fanout(flows={"mail": QUIET}))
    pass_time(store, 6)
    first = await take(store)
    assert first.changed <= 1003, "a thousand between, and the oldest of the keys that run"
    rest = await settled(store)
    assert sorted(numbers(first.claims) + numbers(rest)) == [1_497, 1_498, 1_499]
    assert _discarded(store) == 1_497


async def test_a_hot_key_does_not_hold_up_another_one_in_the_same_claim(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "other")
    messages = [job("mail", {"k": "hot", "n": number}) for number in range(1_100)]
    await put(store, *messages, fanout=Fanout(flows={"mail": QUIET}))
    pass_time(store, 6)
    first = await take(store)
    assert (first.changed, len(first.claims)) == (1000, 1)


async def test_blocked_keys_do_not_hide_the_others(store: Store) -> None:
    """A thousand due deliveries of keys that run are looked at later, so that the next ones are found."""
    await declare(store, QUIET)
    fanout = Fanout(flows={"mail": QUIET})
    await put(store, *[job("mail", {"k": f"k{n}", "n": n}) for n in range(500)], fanout=fanout)
    pass_time(store, 6)
    assert len(await settled(store, size=500)) == 500
    for _ in range(2):
        await put(store, *[job("mail", {"k": f"k{n}", "n": n}) for n in range(500)], fanout=fanout)
    pass_time(store, 60)
    await put(store, job("mail", {"k": "free", "n": -1}), fanout=fanout)
    pass_time(store, 6)
    assert numbers(await settled(store, size=500)) == [-1]


async def test_rows_that_were_published_without_a_delay_wait_for_the_quiet_time_too(store: Store) -> None:
    await declare(store, QUIET)
    fanout = Fanout(flows={"mail": QUIET})
    await put(store, job("mail", {"k": "a", "n": 1}, key="once"), fanout=fanout)
    found = await take(store)
    assert (found.claims, found.changed) == ([], 1)
    (row,) = await all_deliveries(store)
    assert timedelta(seconds=4.9) < row.run_at - row.created_at < timedelta(seconds=5.1)
    pass_time(store, 5.1)
    assert numbers(await settled(store)) == [1]


async def test_deliveries_without_a_key_are_reported_and_not_claimed(store: Store) -> None:
    await declare(store, QUIET)
    await put(store, job("mail", {"k": "a", "n": 1}))
    assert (await take(store)).unkeyed == 1
    assert len((await store.run(unkeyed_deliveries(await lane_of(store), 10, ordered=True))).found) == 1


async def test_nothing_runs_before_every_due_delivery_has_its_key(store: Store) -> None:
    await declare(store, QUIET)
    await put(store, job("mail", {"k": "a", "n": 0}))
    await send(store, QUIET, "a", "b")
    pass_time(store, 6)
    assert (await take(store)).claims == []
    lane = await lane_of(store)
    (old,) = (await store.run(unkeyed_deliveries(lane, 10, ordered=True))).found
    await store.run(adopt_deliveries([DeliveryKey(old.id, "a", ordered=True)]))
    assert numbers(await settled(store)) == [0, 1]
    assert len(await superseded(store)) == 1


async def test_only_the_lane_and_what_is_due_is_claimed(store: Store) -> None:
    await declare(store, QUIET)
    await declare(store, QUIET, name="other")
    await send(store, QUIET, "a", name="other")
    await send(store, QUIET, "a", queue="slow")
    await send(store, QUIET, "b", generation=1)
    await send(store, QUIET, "c", priority=2)
    await send(store, QUIET, "d")
    pass_time(store, 6)
    lane = next(lane for lane in await store.run(lanes(["mail"], 0)) if (lane.queue, lane.priority) == ("default", 1))
    found = await store.run(claim_debounced(lane, "w1", LEASE, 10))
    assert [c.queue + str(c.priority) + c.consumer for c in found.claims] == ["default1mail"]
    assert len(found.claims) == 1


async def test_a_paused_key_waits(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a", "b")
    sql(store, "insert into {hf}flow_pause (consumer, flow_key) values ('mail', 'a')")
    pass_time(store, 6)
    assert numbers(await settled(store)) == [1]
    sql(store, "delete from {hf}flow_pause")
    assert numbers(await settled(store)) == [0]


async def test_a_suspect_newest_runs_alone_and_supersedes_the_others(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a", "a", "a")
    newest = max(await all_deliveries(store), key=lambda d: (d.created_at, d.message_id.int))
    sql(store, "update {hf}delivery set suspect = false")
    sql(store, f"update {{hf}}delivery set suspect = true where id = '{newest.id}'")
    pass_time(store, 90)
    assert await settled(store) == []
    assert numbers(await settled(store, suspects=True)) == [2]
    assert len(await superseded(store)) == 2


async def test_an_old_suspect_is_superseded_by_a_newer_one(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a")
    sql(store, "update {hf}delivery set suspect = true")
    await send(store, QUIET, "a")
    pass_time(store, 6)
    assert await settled(store, suspects=True) == []
    assert len(await settled(store)) == 1
    assert len(await superseded(store)) == 1


async def test_the_size_is_honoured_and_every_key_gets_its_turn(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, *[f"k{number}" for number in range(5)])
    pass_time(store, 6)
    assert len((await take(store, 2)).claims) == 2
    assert len((await take(store, 2)).claims) == 2
    assert len((await take(store, 2)).claims) == 1


async def test_superseded_deliveries_are_pruned_like_delivered_ones(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a", "a")
    pass_time(store, 6)
    (claimed,) = await settled(store)
    assert await finish(store, claimed, DeadLetter(), error=failure())
    pass_time(store, 3600)
    await store.run(prune_deliveries(FROM_THE_START, UUID(int=2**128 - 1), timedelta(minutes=1)))
    assert [d.id for d in await all_deliveries(store)] == [claimed.id]


async def test_a_delivered_run_leaves_nothing_pending(store: Store) -> None:
    await declare(store, QUIET)
    await send(store, QUIET, "a", "a")
    pass_time(store, 6)
    (claimed,) = await settled(store)
    assert await finish(store, claimed, Deliver())
    assert await settled(store) == []
    assert sorted(d.status for d in await all_deliveries(store)) == [Status.DELIVERED, Status.FAILED]
