"""Progress: written under the fence of its run, read until the delivery is delivered or runs again."""

from datetime import timedelta

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.stores.admin.actions import replay
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.deliveries.progress import (
    ReportedProgress,
    forget_progress,
    progress_of,
    prune_progress,
    report_progress,
)
from holdfast.stores.protocol import Store
from holdfast.stores.queries.time_travel import abandon
from tests.support.builders import claim_all, claim_one, finish, job, put, sql

NOW = timedelta(0)


async def report(store: Store, *claims: Claimed, fraction: float = 0.5, note: str | None = None) -> None:
    await store.run(report_progress([ReportedProgress(one.id, one.fence, fraction, note) for one in claims]))


async def read(store: Store, claimed: Claimed) -> tuple[float, str | None] | None:
    found = await store.run(progress_of(claimed.id))
    return None if found is None else found[:2]


def rows(store: Store) -> list[tuple[object, ...]]:
    return sql(store, "select fraction from {hf}progress order by fraction")


async def test_only_the_owner_of_the_delivery_reports_and_later_reports_replace_earlier_ones(store: Store) -> None:
    await put(store, job(), job())
    first, second = await claim_all(store)
    await report(store, first, second._replace(fence=second.fence - 1))
    await report(store, second._replace(fence=second.fence + 1))
    assert (await read(store, first), await read(store, second)) == ((0.5, None), None)
    await report(store, first, fraction=0.75, note="charging")
    await report(store, second, fraction=0.25)
    assert (await read(store, first), await read(store, second)) == ((0.75, "charging"), (0.25, None))
    await store.run(abandon(first.id))
    (again,) = await claim_all(store, "w2")
    assert await read(store, first) is None
    await report(store, first, fraction=0.9)
    assert await read(store, again) is None
    await report(store, again, fraction=0.1)
    assert await read(store, again) == (0.1, None)


async def test_a_report_that_is_late_does_not_replace_that_of_a_later_run(store: Store) -> None:
    claimed = await claim_one(store)
    await report(store, claimed, fraction=0.3)
    # As if a later run reported between the check of the fence and the write.
    sql(store, "update {hf}progress set fence = fence + 1")
    await report(store, claimed, fraction=0.9)
    assert [(float(str(fraction)),) for (fraction,) in rows(store)] == [(0.3,)]


async def test_a_delivered_run_has_no_progress_and_a_failed_one_keeps_it_until_it_runs_again(store: Store) -> None:
    await put(store, *(job() for _ in range(3)))
    done, retried, dead = claims = await claim_all(store)
    await report(store, *claims)
    await finish(store, done, Deliver())
    await finish(store, retried, Retry(NOW))
    await finish(store, dead, DeadLetter())
    assert [await read(store, one) for one in claims] == [None, (0.5, None), (0.5, None)]
    # The last value of a failed run may come after its settlement; that of a delivered one may not.
    await report(store, *claims, fraction=0.6)
    assert [await read(store, one) for one in claims] == [None, (0.6, None), (0.6, None)]
    assert len(rows(store)) == 3
    assert not await store.run(prune_progress())
    await report(store, done)
    assert len(rows(store)) == 2
    await store.run(replay([dead.id], "ada", "again"))
    again = {one.id: one for one in await claim_all(store)}
    assert [await read(store, one) for one in (retried, dead)] == [None, None]
    await report(store, again[dead.id], fraction=0.7)
    await store.run(prune_progress())
    assert [(float(str(fraction)),) for (fraction,) in rows(store)] == [(0.7,)]
    await store.run(forget_progress([(dead.id, dead.fence)]))
    assert len(rows(store)) == 1
    await store.run(forget_progress([(dead.id, again[dead.id].fence)]))
    assert rows(store) == []
