"""Writing outcomes: for every fault of the store, each is written or known to be lost, and none delays the others."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.change import Deliver, Retry
from holdfast.core.delivery import Status
from holdfast.engine.settlement.settler import Ack, Settler
from holdfast.stores.deliveries.claim import Claimed
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.time_travel import abandon
from holdfast.stores.sqlite.store import SqliteStore
from tests.engine.programs.proxy import Proxy
from tests.servers.postgres import PostgresServer
from tests.stores.workflows.run_steps import claim_steps, end, started
from tests.support.builders import all_deliveries, claim_all, delivery, failure, job, outcome, put, sql
from tests.support.worker import Log, eventually, logged

SECOND = timedelta(seconds=1)


@pytest.fixture(params=["sqlite", "postgres18"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    dsn = request.getfixturevalue(f"{request.param}_dsn")
    opened: Store = (
        PostgresStore(dsn) if request.param == "postgres18" else SqliteStore(Path(dsn.removeprefix("sqlite:///")))
    )
    if request.param == "sqlite":
        opened.migrate()
    yield opened
    await opened.close()


class Acknowledged:
    """What became of acknowledgements, by their delivery."""

    def __init__(self) -> None:
        self.written: list[Claimed] = []
        self.lost: list[Claimed] = []

    def ack(self, claimed: Claimed, change: Any = None, **more: Any) -> Ack:
        return Ack(
            outcome(claimed, change or Deliver(), **more),
            lambda: self.written.append(claimed),
            lambda: self.lost.append(claimed),
        )


@asynccontextmanager
async def settling(settler: Settler) -> AsyncIterator[None]:
    task = asyncio.create_task(settler.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def claimed(store: Store, number: int) -> list[Claimed]:
    await put(store, *(job(payload={"n": n}) for n in range(number)))
    found = await claim_all(store) + await claim_all(store)
    assert len(found) == number
    return found


async def test_outcomes_are_written_in_batches_and_each_is_acked(store: Store) -> None:
    acked, settler = Acknowledged(), Settler(store, "w1")
    claims = await claimed(store, 600)
    for one in claims:
        settler.add(acked.ack(one))
    assert len(settler) == 600
    async with settling(settler):
        await asyncio.wait_for(settler.drained(), 20)
    assert (len(settler), len(acked.written), acked.lost) == (0, 600, [])
    assert {d.status for d in await all_deliveries(store)} == {Status.DELIVERED}


async def test_what_another_worker_owns_by_now_is_reported_as_lost_and_changes_nothing(store: Store) -> None:
    acked, settler = Acknowledged(), Settler(store, "w1")
    mine, theirs = await claimed(store, 2)
    await store.run(abandon(theirs.id))
    async with settling(settler):
        settler.add(acked.ack(mine))
        settler.add(acked.ack(theirs))
        await asyncio.wait_for(settler.drained(), 20)
    assert (acked.written, acked.lost) == ([mine], [theirs])
    assert (await delivery(store, theirs.id)).status is Status.PENDING


async def settle_steps(store: Store, settler: Settler) -> None:
    """Twenty steps end, one in each turn of the loop."""
    await started(store, 20)
    async with settling(settler):
        for one in await claim_steps(store):
            settler.add(Ack(outcome(one, Deliver()), step=end(one)))
            await asyncio.sleep(0)
        await asyncio.wait_for(settler.drained(), 20)
    assert {d.status for d in await all_deliveries(store) if d.consumer == "flow/a"} == {Status.DELIVERED}


async def test_steps_are_written_together_while_more_of_them_follow(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.engine.settlement.settler._COLLECT", 20.0)
    batches: list[int] = []
    settler = Settler(store, "w1", lambda batch: batches.append(len(batch)), expects_more=lambda: len(settler) < 20)
    await settle_steps(store, settler)
    assert batches == [20]


async def test_steps_that_more_should_follow_do_not_wait_for_long(store: Store) -> None:
    await settle_steps(store, Settler(store, "w1", expects_more=lambda: True))


async def test_outcomes_wait_while_a_file_is_locked_and_are_written_then(tmp_path: Path, log: Log) -> None:
    store = SqliteStore(tmp_path / "a.db", busy_timeout=timedelta(milliseconds=50))
    store.migrate()
    acked, settler = Acknowledged(), Settler(store, "w1")
    (one,) = await claimed(store, 1)
    with closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as other:
        other.execute("begin immediate")
        async with settling(settler):
            settler.add(acked.ack(one))
            await eventually(lambda: logged(log, "store unavailable"))
            assert (acked.written, len(settler)) == ([], 1)
            other.execute("rollback")
            await asyncio.wait_for(settler.drained(), 20)
    assert acked.written == [one]
    await store.close()


@pytest.fixture
async def through(postgres18: PostgresServer, postgres18_dsn: str) -> AsyncIterator[tuple[PostgresStore, Proxy]]:
    """A store behind a proxy."""
    with Proxy(postgres18) as proxy:
        store = PostgresStore(proxy.dsn(postgres18_dsn), timeout=timedelta(milliseconds=300))
        yield store, proxy
        await store.close()


async def test_outcomes_wait_while_the_server_is_away_and_are_written_then(
    through: tuple[PostgresStore, Proxy], log: Log
) -> None:
    store, proxy = through
    acked, settler = Acknowledged(), Settler(store, "w1")
    claims = await claimed(store, 20)
    async with settling(settler):
        with proxy.away():
            for one in claims:
                settler.add(acked.ack(one))
            await eventually(lambda: len(logged(log, "store unavailable")) > 1)
            assert (acked.written, acked.lost) == ([], [])
        await asyncio.wait_for(settler.drained(), 20)
    assert len(acked.written) == 20
    assert {d.status for d in await all_deliveries(store)} == {Status.DELIVERED}


@pytest.mark.parametrize("forward", [True, False], ids=["reply-lost", "never-sent"])
@pytest.mark.parametrize("change", [Deliver(), Retry(SECOND)], ids=["delivered", "retry"])
async def test_after_a_lost_commit_the_store_is_asked_who_owns_it(
    through: tuple[PostgresStore, Proxy], change: Any, forward: bool
) -> None:
    """Committed or not, it is reported as written once: never as lost, and the row is written once."""
    store, proxy = through
    acked, settler = Acknowledged(), Settler(store, "w1")
    (one,) = await claimed(store, 1)
    proxy.lose("lease_until = null", forward=forward)
    async with settling(settler):
        settler.add(acked.ack(one, change, error=None if isinstance(change, Deliver) else failure()))
        await asyncio.wait_for(settler.drained(), 20)
    assert (proxy.lost, acked.written, acked.lost) == (1, [one], [])
    found = await delivery(store, one.id)
    assert (found.status, found.attempts, found.fence) == (change.status, 1, one.fence)
    assert sql(store, "select count(*) from {hf}run")[0][0] == (0 if isinstance(change, Deliver) else 1)


async def test_a_worker_claims_no_more_while_its_outcomes_are_not_written(
    through: tuple[PostgresStore, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is done and not written is done again if the worker dies: there must not be ever more of it."""
    monkeypatch.setattr("holdfast.engine.settlement.settler._MOST_UNWRITTEN", 10)
    store, proxy = through
    wrote = asyncio.Event()
    acked, settler = Acknowledged(), Settler(store, "w1", lambda _: wrote.set())
    claims = await claimed(store, 20)
    async with settling(settler):
        with proxy.away():
            for one in claims:
                settler.add(acked.ack(one))
            await asyncio.sleep(0.1)
            assert settler.behind
            assert not wrote.is_set()
        await asyncio.wait_for(wrote.wait(), 20)
        assert not settler.behind


@pytest.fixture
def refuses(store: Store) -> Iterator[Callable[[str], None]]:
    """Makes the store refuse outcomes whose error text holds a word, with an unexpected error."""

    def refuse(word: str) -> None:
        if store.dialect.name == "sqlite":
            when = f"when new.error like '%{word}%' begin select raise(abort, 'refused'); end"
            sql(store, f"create trigger refuse before insert on {{hf}}run {when}")
        else:
            sql(store, f"alter table {{hf}}run add constraint refuse check (error not like '%{word}%')")

    yield refuse
    if store.dialect.name == "postgres":
        sql(store, "alter table {hf}run drop constraint if exists refuse")


async def test_one_outcome_that_cannot_be_stored_does_not_hold_up_the_others(
    store: Store, refuses: Callable[[str], None], log: Log
) -> None:
    """It is tried again with a plainer text, so that its failure is recorded after all."""
    refuses("cursed")
    acked, settler = Acknowledged(), Settler(store, "w1")
    cursed, *others = await claimed(store, 10)
    async with settling(settler):
        settler.add(acked.ack(cursed, Retry(SECOND), error=failure("a cursed text")))
        for one in others:
            settler.add(acked.ack(one, Retry(SECOND), error=failure("plain")))
        await asyncio.wait_for(settler.drained(), 20)
    assert acked.written[:-1] == others
    assert acked.written[-1] == cursed
    assert (await delivery(store, cursed.id)).error_type == "holdfast.Unstorable"
    assert len(logged(log, "settlement failed")) >= 2


async def test_one_that_can_never_be_stored_is_tried_for_ever_and_kept_in_sight(
    store: Store, refuses: Callable[[str], None], log: Log
) -> None:
    refuses("")
    acked, settler = Acknowledged(), Settler(store, "w1")
    cursed, other = await claimed(store, 2)
    async with settling(settler):
        settler.add(acked.ack(cursed, Retry(SECOND), error=failure("never")))
        await eventually(lambda: len(logged(log, "settlement failed")) >= 3)
        settler.add(acked.ack(other))
        await eventually(lambda: acked.written == [other])
        assert (len(settler), settler.ids()) == (1, {cursed.id})


async def test_what_follows_a_settlement_may_fail_and_stops_nothing(store: Store, log: Log) -> None:
    def broken() -> None:
        raise RuntimeError("the log is full")

    acked, settler = Acknowledged(), Settler(store, "w1")
    first, second = await claimed(store, 2)
    async with settling(settler):
        settler.add(Ack(outcome(first, Deliver()), broken))
        settler.add(acked.ack(second))
        await asyncio.wait_for(settler.drained(), 20)
    assert acked.written == [second]
    assert logged(log, "settlement callback failed")
