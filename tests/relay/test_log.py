"""The event store read as a log: nothing is skipped, whenever it commits, and what came first comes first."""

import random
from contextlib import AsyncExitStack
from uuid import UUID

import psycopg
import pytest

from holdfast.core.errors import ConfigurationError, LogRewound
from holdfast.core.message import NewMessage
from holdfast.stores.connections.connection import AsyncPsycopg, run_on_async
from holdfast.stores.event_log import log
from holdfast.stores.event_log.log import START, Cursor, EventFilter, LogReader, behind, end_of_log, read_log
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import publish
from holdfast.stores.operation import Operation
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from tests.stores.query_plans.explain import session
from tests.support.builders import job, message, put, sql

EVERY = EventFilter()


class Writer:
    """A publisher whose transaction the test begins, writes in and ends."""

    def __init__(self, store: PostgresStore, connection: "psycopg.AsyncConnection[object]") -> None:
        self._store, self._connection = store, connection

    async def begin(self) -> None:
        """Takes a transaction id, as a write to any table would."""
        await self._connection.execute("select pg_current_xact_id()")

    async def write(self, one: NewMessage) -> UUID:
        joined = AsyncPsycopg(self._connection)
        await run_on_async(publish([one], Fanout()), self._store.dialect, joined)
        return one.id

    async def commit(self) -> None:
        await self._connection.commit()

    async def rollback(self) -> None:
        await self._connection.rollback()


class Writers(AsyncExitStack):
    """Any number of them."""

    def __init__(self, store: PostgresStore) -> None:
        super().__init__()
        self._store = store

    async def one(self) -> Writer:
        connection = await psycopg.AsyncConnection.connect(self._store.conninfo)
        return Writer(self._store, await self.enter_async_context(connection))


async def read_on(
    store: Store, cursor: Cursor, wanted: EventFilter = EVERY, limit: int = 500
) -> tuple[list[UUID], Cursor]:
    """Everything there is behind a cursor, read page by page; each cursor passes through its text."""
    ids: list[UUID] = []
    while True:
        page = await store.run(read_log(cursor, wanted, limit))
        ids += [event.id for event in page.events]
        cursor = Cursor.parse(str(page.cursor))
        if not page.more:
            return ids, cursor


async def published(store: Store, *messages: NewMessage) -> list[UUID]:
    return [one.id for one in await put(store, *messages)]


@pytest.mark.parametrize("limit", [1, 3, 500])
async def test_every_event_comes_once_and_in_order_for_any_page_size(store: Store, limit: int) -> None:
    first = await published(store, *(message(payload={"n": n}) for n in range(7)))
    ids, cursor = await read_on(store, START, limit=limit)
    assert ids == first
    assert (await read_on(store, cursor, limit=limit))[0] == []
    second = await published(store, message(), message())
    assert (await read_on(store, cursor, limit=limit))[0] == second


async def test_types_prefixes_and_all_are_distinguished_and_jobs_are_no_events(store: Store) -> None:
    placed, line, order, other, _ = await published(
        store, message("order.placed"), message("order.line.added"), message("order"), message("orders.x"), job("mail")
    )
    for patterns, wanted in {
        ("*",): [placed, line, order, other],
        ("order.*",): [placed, line],
        ("order.line.*", "order"): [line, order],
        ("order.placed", "orders.x"): [placed, other],
        ("none",): [],
    }.items():
        for limit in (1, 500):
            found, cursor = await read_on(store, START, EventFilter(patterns), limit)
            assert found == wanted, patterns
            assert (await read_on(store, cursor, EventFilter(patterns)))[0] == []


async def test_a_reader_that_starts_now_gets_what_comes_after(store: Store) -> None:
    await published(store, message(), message())
    cursor = await store.run(Operation(end_of_log))
    assert (await read_on(store, cursor))[0] == []
    later = await published(store, message())
    assert (await read_on(store, cursor))[0] == later


async def test_how_much_waits_is_counted_up_to_a_bound(store: Store) -> None:
    first = await published(store, *(message("order.placed") for _ in range(5)), message("mail.sent"))
    assert (await store.run(behind(START, EventFilter(("order.*",))))).waiting == 5
    bounded = await store.run(behind(START, EVERY, bound=3))
    assert (bounded.waiting, bounded.or_more) == (3, True)
    page = await store.run(read_log(START, EVERY, len(first) - 2))
    assert (await store.run(behind(page.cursor, EVERY))).waiting == 2
    assert (await store.run(behind((await read_on(store, START))[1], EVERY)))[:1] == (0,)


async def test_a_late_committer_is_read_though_others_with_higher_positions_were(postgres_store: PostgresStore) -> None:
    async with Writers(postgres_store) as writers:
        slow, ages = await writers.one(), await writers.one()
        await ages.begin()
        late = await slow.write(message())
        early = await published(postgres_store, message(), message())
        ids, cursor = await read_on(postgres_store, START)
        assert ids == early, "what is committed does not wait for who is not"
        await slow.commit()
        ids, cursor = await read_on(postgres_store, cursor)
        assert ids == [late]
        oldest = await ages.write(message())
        await ages.commit()
        assert (await read_on(postgres_store, cursor))[0] == [oldest]


async def test_what_is_rolled_back_is_never_read_and_holds_nothing_up(postgres_store: PostgresStore) -> None:
    async with Writers(postgres_store) as writers:
        fickle = await writers.one()
        await fickle.write(message())
        kept = await published(postgres_store, message())
        ids, cursor = await read_on(postgres_store, START)
        await fickle.rollback()
        assert ids == kept
        assert (await read_on(postgres_store, cursor))[0] == []


async def test_an_event_written_after_another_had_committed_comes_after_it(postgres_store: PostgresStore) -> None:
    """Three transactions. `old` has the lowest id and is the last to write: it has seen what `middle` committed. By
    transaction id, or by "everything below the oldest that is open", its event would come first."""
    async with Writers(postgres_store) as writers:
        old, middle, open_one = [await writers.one() for _ in range(3)]
        await old.begin()
        await open_one.begin()
        cause = await middle.write(message())
        await middle.commit()
        effect = await old.write(message())
        await old.commit()
        ids, cursor = await read_on(postgres_store, START, limit=1)
        assert ids == [cause, effect]
        last = await open_one.write(message())
        await open_one.commit()
        assert (await read_on(postgres_store, cursor, limit=1))[0] == [last]


async def test_a_step_continues_where_it_was_though_more_commits_in_between(postgres_store: PostgresStore) -> None:
    async with Writers(postgres_store) as writers:
        slow = await writers.one()
        late = await slow.write(message())
        first = await published(postgres_store, *(message() for _ in range(5)))
        page = await postgres_store.run(read_log(START, EVERY, 2))
        await slow.commit()
        more = await published(postgres_store, message())
        rest, _ = await read_on(postgres_store, page.cursor, limit=2)
    assert [event.id for event in page.events] + rest == [*first, late, *more]


async def test_writers_that_commit_in_any_order_are_all_read_once_and_causes_before_effects(
    postgres_store: PostgresStore,
) -> None:
    seed = random.randrange(10**6)
    chance = random.Random(seed)
    committed: list[UUID] = []
    seen_before: dict[UUID, int] = {}
    ids: list[UUID] = []
    cursor = START
    async with Writers(postgres_store) as writers:
        crowd = [await writers.one() for _ in range(6)]
        uncommitted: dict[int, list[UUID]] = {n: [] for n in range(6)}
        for _ in range(150):
            n = chance.randrange(6)
            match chance.choice(["begin", "write", "write", "commit", "rollback", "read"]):
                case "begin":
                    await crowd[n].begin()
                case "write":
                    id = await crowd[n].write(message())
                    uncommitted[n].append(id)
                    seen_before[id] = len(committed)
                case "commit":
                    await crowd[n].commit()
                    committed += uncommitted[n]
                    uncommitted[n] = []
                case "rollback":
                    await crowd[n].rollback()
                    uncommitted[n] = []
                case _:
                    page = await postgres_store.run(read_log(cursor, EVERY, chance.choice([1, 3, 500])))
                    ids += [event.id for event in page.events]
                    cursor = Cursor.parse(str(page.cursor))
        for n, writer in enumerate(crowd):
            await writer.commit()
            committed += uncommitted[n]
    ids += (await read_on(postgres_store, cursor))[0]
    assert sorted(ids) == sorted(committed), seed
    place = {id: at for at, id in enumerate(ids)}
    late = [(a, b) for b in ids for a in committed[: seen_before[b]] if place[a] > place[b]]
    assert late == [], seed


async def test_a_backlog_is_looked_through_once_not_for_each_page(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = await published(store, *(message(payload={"n": n}) for n in range(60)))
    asked: list[Cursor] = []
    original = log.look_ahead

    def counted(cursor: Cursor, wanted: EventFilter) -> Operation[log.LogAhead]:
        asked.append(cursor)
        return original(cursor, wanted, 25)

    monkeypatch.setattr(log, "look_ahead", counted)
    reader, ids = LogReader(store, EVERY), list[UUID]()
    while True:
        page = await reader.read(limit=10)
        ids += [event.id for event in page.events]
        assert len(page.events) <= 10
        resumed, _ = await read_on(store, page.cursor)
        assert ids + resumed == wanted, "the cursor of every page is where to continue"
        if not page.more:
            break
    assert len(asked) <= 4, "three times for sixty events, and once to find that there are no more"


async def test_a_page_of_large_events_is_cut_to_what_memory_bears(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "_PAGE_BYTES", 50_000)
    noise = random.Random(1)
    wanted = await published(store, *(message(payload={"n": noise.randbytes(20_000).hex()}) for _ in range(5)))
    reader, pages = LogReader(store, EVERY), list[log.LogPage]()
    while not pages or pages[-1].more:
        pages.append(await reader.read())
    assert [event.id for page in pages for event in page.events] == wanted
    assert max(len(page.events) for page in pages) <= 2


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
async def test_a_new_event_costs_a_few_pages_despite_history_and_open_transactions(
    postgres_store: PostgresStore, mode: str
) -> None:
    many = """insert into holdfast.message (id, type, source, payload, headers, generation, sub_epoch{0})
              select gen_random_uuid(), 'order.placed', 'shop', '{{}}', '{{}}', 0, 0{1} from generate_series(1, 4000) g"""
    sql(postgres_store, many.format(", tx", ", (3 + g / 20)::text::xid8"))
    async with Writers(postgres_store) as writers:
        await (await writers.one()).begin()
        sql(postgres_store, many.format("", ""))
        sql(postgres_store, "analyze holdfast.message")
        cursor = await postgres_store.run(Operation(end_of_log))
        (new,) = await published(postgres_store, message())
        with session(postgres_store) as looking:
            looking.plan_mode(mode)
            page = looking.run(read_log(cursor, EVERY))
            plan = looking.explain("log_ahead")
    assert [event.id for event in page.events] == [new]
    assert plan.scans("message") == {"message_log"}
    assert plan.buffers < 60


@pytest.mark.parametrize("of", ["cursor", "message"])
async def test_a_log_that_was_restored_elsewhere_is_refused_not_skipped(postgres_store: PostgresStore, of: str) -> None:
    await published(postgres_store, message())
    cursor = START
    if of == "cursor":
        cursor = Cursor("9000000000:9000000000:")
    else:
        sql(postgres_store, "update holdfast.message set tx = '9000000000'")
    with pytest.raises(LogRewound, match="another server"):
        await postgres_store.run(read_log(cursor, EVERY))


@pytest.mark.parametrize("text", ["", "7", ";;", "a;b;c", "1:1:;;-2", "a;;1", "1:1:;x;3", f";;{10**18}"])
def test_what_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError, match="not a cursor of this log"):
        Cursor.parse(text)


def test_a_reader_says_what_it_wants() -> None:
    with pytest.raises(ConfigurationError, match="list of events is empty"):
        EventFilter(())
