"""Reactions: in the publishing process, after the commit and never without it, one word away from a consumer."""

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from holdfast import Context, Holdfast, begin_immediate, correlate, event
from holdfast.stores.queries.query import messages
from tests.engine.ways import by_django, configure_django
from tests.support.worker import Log, drain, eventually, logged, wait_for


@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int


class Seen:
    """What reacted, from any thread."""

    def __init__(self) -> None:
        self.orders: list[object] = []
        self.any = threading.Event()

    def add(self, order: object) -> None:
        self.orders.append(order)
        self.any.set()


@pytest.fixture
def seen(hf: Holdfast) -> Seen:
    seen = Seen()

    @hf.reaction(OrderPlaced)
    async def react(order: OrderPlaced) -> None:
        seen.add(order)

    return seen


@pytest.fixture
async def engine(hf: Holdfast, dsn: str) -> AsyncIterator[AsyncEngine]:
    await hf._runtime.registration.prepare()
    url = dsn.replace("sqlite:", "sqlite+aiosqlite:").replace("postgresql:", "postgresql+psycopg_async:")
    engine = create_async_engine(url, poolclass=NullPool)
    if dsn.startswith("sqlite"):
        begin_immediate(engine)
    yield engine
    await engine.dispose()


async def test_a_reaction_runs_right_after_an_event_that_committed_on_its_own(hf: Holdfast, seen: Seen) -> None:
    await hf.publish(OrderPlaced(1), conn=None)
    await eventually(seen.any.is_set)
    assert seen.orders == [OrderPlaced(1)]


async def test_a_reaction_waits_for_the_commit_of_a_session(hf: Holdfast, seen: Seen, engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session, session.begin():
        await hf.publish(OrderPlaced(1), conn=session)
        await asyncio.sleep(0.05)
        assert seen.orders == []
    await eventually(seen.any.is_set)
    assert seen.orders == [OrderPlaced(1)]


async def test_a_rollback_means_no_reaction(hf: Holdfast, seen: Seen, engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session:
        await hf.publish(OrderPlaced(1), conn=session)
        await session.rollback()
        await hf.publish(OrderPlaced(2), conn=session)
        await session.commit()
    await eventually(seen.any.is_set)
    assert seen.orders == [OrderPlaced(2)]


async def test_a_savepoint_is_no_commit(hf: Holdfast, seen: Seen, engine: AsyncEngine) -> None:
    async with AsyncSession(engine) as session, session.begin():
        async with session.begin_nested():
            await hf.publish(OrderPlaced(1), conn=session)
        undone = await session.begin_nested()
        await hf.publish(OrderPlaced(2), conn=session)
        await undone.rollback()
        await asyncio.sleep(0.05)
        assert seen.orders == []
    await eventually(seen.any.is_set)
    assert seen.orders == [OrderPlaced(1)]


async def test_plain_code_with_a_blocking_session_gets_its_reactions_too(hf: Holdfast, dsn: str) -> None:
    """Plain ones run in the thread that committed, async ones in a separate loop."""
    ran: list[tuple[str, bool]] = []
    done = threading.Event()
    await hf._runtime.registration.prepare()

    @hf.reaction("order.*")
    def plain(payload: object) -> None:
        ran.append(("plain", threading.current_thread() is publisher))

    @hf.reaction("order.*")
    async def awaiting(payload: object) -> None:
        ran.append(("async", threading.current_thread() is publisher))
        done.set()

    def publish() -> None:
        engine = sa.create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool)
        with Session(engine) as session, session.begin():
            hf.sync.publish("order.placed", {}, conn=session)
        engine.dispose()

    publisher = threading.Thread(target=publish)
    publisher.start()
    await asyncio.to_thread(publisher.join)
    await eventually(done.is_set)
    assert [name for name, _ in ran] == ["plain", "async"]


async def test_django_reports_its_commit(hf: Holdfast, dsn: str, seen: Seen) -> None:
    await hf._runtime.registration.prepare()
    configure_django(dsn)

    def publish() -> None:
        with by_django(dsn) as (conn, _):
            hf.sync.publish(OrderPlaced(1), conn=conn)
            assert seen.orders == []

    await asyncio.to_thread(publish)
    await eventually(seen.any.is_set)
    assert seen.orders == [OrderPlaced(1)]


def connect(dsn: str) -> Any:
    return sqlite3.connect(dsn.removeprefix("sqlite:///")) if dsn.startswith("sqlite") else psycopg.connect(dsn)


async def test_on_a_bare_connection_it_runs_soon_after_the_commit_and_not_before(
    hf: Holdfast, seen: Seen, dsn: str
) -> None:
    await hf._runtime.registration.prepare()

    def publish(end: str) -> None:
        with closing(connect(dsn)) as conn:
            hf.sync.publish(OrderPlaced(1 if end == "commit" else 2), conn=conn)
            assert not seen.any.wait(0.05)
            getattr(conn, end)()

    await asyncio.to_thread(publish, "rollback")
    await asyncio.to_thread(publish, "commit")
    await eventually(seen.any.is_set)
    assert seen.orders == [OrderPlaced(1)], "never for what was rolled back"


@pytest.mark.parametrize("dsn", ["postgres18"], indirect=True)
async def test_on_a_bare_async_connection_it_runs_in_the_loop_of_the_publisher(hf: Holdfast, dsn: str) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @hf.reaction(OrderPlaced)
    async def react(order: OrderPlaced) -> None:
        loops.append(asyncio.get_running_loop())

    await hf._runtime.registration.prepare()
    async with await psycopg.AsyncConnection.connect(dsn) as conn:
        await hf.publish(OrderPlaced(1), conn=conn)
        await conn.execute("savepoint inner_one")
        await hf.publish(OrderPlaced(2), conn=conn)
        await conn.execute("rollback to savepoint inner_one")
    await eventually(lambda: loops)
    await hf.close()
    assert loops == [asyncio.get_running_loop()]


def test_a_program_that_commits_and_ends_gets_its_reaction(tmp_path: Path) -> None:
    program = textwrap.dedent("""
        import sqlite3, sys
        from holdfast import Holdfast
        hf = Holdfast(f"sqlite:///{sys.argv[1]}")
        @hf.reaction("order.placed")
        def react(order): print("reacted to", order["id"], flush=True)
        with sqlite3.connect(sys.argv[1]) as db:
            hf.sync.publish("order.placed", {"id": 1}, conn=db)
        db.execute("begin")
        hf.sync.publish("order.placed", {"id": 2}, conn=db)
        db.rollback()
    """)
    command = [sys.executable, "-c", program, str(tmp_path / "shop.db")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert ended.stdout == "reacted to 1\n", ended.stderr


async def test_a_reaction_becomes_a_consumer_by_one_word(hf: Holdfast) -> None:
    """The same function, called with the same kind of arguments; payloads pass through JSON both times."""
    seen: list[tuple[object, str, int]] = []
    both = asyncio.Event()

    async def handle(ctx: Context, order: OrderPlaced) -> None:
        seen.append((order, ctx.type, ctx.attempt))
        if len(seen) == 2:
            both.set()

    hf.reaction(OrderPlaced)(handle)
    hf.consumer(OrderPlaced)(handle)
    await hf.publish(OrderPlaced(7), conn=None)
    await drain(hf)
    await wait_for(both)
    assert seen == [(OrderPlaced(7), "order.placed", 1)] * 2


async def test_a_reaction_runs_once_although_several_patterns_match_and_not_for_a_second_publish(hf: Holdfast) -> None:
    seen = Seen()

    @hf.reaction("order.*", "*", "order.placed")
    async def react(payload: object) -> None:
        seen.add(payload)

    await hf.publish("order.placed", {"n": 1}, conn=None, key="one")
    await hf.publish("order.placed", {"n": 1}, conn=None, key="one")
    await hf.publish("last", {}, conn=None)
    await eventually(lambda: len(seen.orders) == 2)
    assert seen.orders == [{"n": 1}, {}]


async def test_a_reaction_that_fails_is_logged_and_the_event_stays(hf: Holdfast, log: Log) -> None:
    @hf.reaction("order.placed")
    def broken(payload: object) -> None:
        raise ZeroDivisionError

    published = await hf.publish("order.placed", {}, conn=None, headers={"request_id": "r-1", "event": "hostile"})
    (line,) = await eventually(lambda: logged(log, "reaction failed"))
    assert (line["event_id"], line["request_id"], line["header_event"]) == (str(published.id), "r-1", "hostile")
    assert len(await hf.store.run(messages())) == 1


async def test_what_a_reaction_publishes_carries_the_ids_of_its_event(hf: Holdfast) -> None:
    @hf.reaction("order.placed")
    async def react(ctx: Context, payload: object) -> None:
        await ctx.publish("mail.wanted", {}, conn=None)

    with correlate(request_id="r-7"):
        await hf.publish("order.placed", {}, conn=None)
    (message,) = await eventually(lambda: hf.store.run(messages(type="mail.wanted")))
    assert message.headers["request_id"] == "r-7"


async def test_jobs_are_not_reacted_to(hf: Holdfast) -> None:
    seen = Seen()

    @hf.reaction("*")
    async def react(ctx: Context, payload: object) -> None:
        seen.add(ctx.type)

    @hf.job()
    async def work() -> None: ...

    await work.enqueue()
    await hf.publish("order.placed", {}, conn=None)
    await eventually(seen.any.is_set)
    assert seen.orders == ["order.placed"]
