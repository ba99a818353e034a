"""What operators' lists cost on a big store beside an empty one.

`python -m bench.lists` fills PostgreSQL and SQLite with a million deliveries, a hundred thousand of them dead letters,
asks for every list a number of times and prints the 95th percentile in milliseconds. What is asked for is the worst
case: the rare things are the oldest.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import click
import httpx2
import psycopg

from bench.machine import load, machine
from holdfast.core.delivery import Status
from holdfast.interfaces.console.app import SCREENS, Console
from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.query import Filter
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer

_POSTGRES = (
    """
    insert into {hf}message (id, type, source, payload, headers, generation, sub_epoch)
    select (lpad(to_hex(1700000000000 + n), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid,
           case when n <= 20 then 'rare.thing' else 'order.t' || n % 20 end, 'shop', jsonb_build_object('n', n), '{}', 0, 1
    from generate_series(1, {rows}) n
    """,
    """
    insert into {hf}delivery (id, message_id, consumer, queue, priority, generation, status, attempts, fence,
                              completed_at, first_failed_at, fingerprint, error_type, last_error)
    select (lpad(to_hex(1700000000000 + n), 12, '0') || '70009' || lpad(to_hex(n), 15, '0'))::uuid,
           (lpad(to_hex(1700000000000 + n), 12, '0') || '70008' || lpad(to_hex(n), 15, '0'))::uuid,
           case when n <= 20 then 'rare' else 'c' || n % 20 end, 'q' || n % 5, 1, 0,
           case when n % 10 = 0 then 'failed' when n <= 1000 then 'pending' else 'delivered' end, 1, 1,
           case when n > 1000 or n % 10 = 0 then now() + n * interval '1 ms' end,
           case when n % 10 = 0 then now() + n * interval '1 ms' end,
           case when n % 10 = 0 then case when n < 60 then 'rare' when n % 1000 = 0 then 'f' || n / 1000 % 50 else 'big' end end,
           case when n % 10 = 0 then case when n < 60 then 'RareError' else 'ValueError' end end,
           case when n % 10 = 0 then repeat('x', 200) end
    from generate_series(1, {rows}) n
    """,
    "vacuum (analyze)",
)
_NUMBERS = "with recursive number(n) as (select 1 union all select n + 1 from number where n < {rows})"
_ID = "printf('018b%04x-%04x-7000-{half}-%012x', n / 65536, n % 65536, n)"
_SQLITE = (
    f"""
    insert into {{hf}}message (id, type, source, payload, headers, generation, sub_epoch)
    {_NUMBERS}
    select {_ID.replace("{half}", "8000")}, case when n <= 20 then 'rare.thing' else 'order.t' || (n % 20) end,
           'shop', '{{}}', '{{}}', 0, 1 from number
    """,
    f"""
    insert into {{hf}}delivery (id, message_id, consumer, queue, priority, generation, status, attempts, fence,
                                completed_at, first_failed_at, fingerprint, error_type, last_error)
    {_NUMBERS}
    select {_ID.replace("{half}", "9000")}, {_ID.replace("{half}", "8000")},
           case when n <= 20 then 'rare' else 'c' || (n % 20) end, 'q' || (n % 5), 1, 0,
           case when n % 10 = 0 then 'failed' when n <= 1000 then 'pending' else 'delivered' end, 1, 1,
           case when n > 1000 or n % 10 = 0 then 1700000000000 + n end, case when n % 10 = 0 then 1700000000000 + n end,
           case when n % 10 = 0 then case when n < 60 then 'rare' when n % 1000 = 0 then 'f' || (n / 1000 % 50) else 'big' end end,
           case when n % 10 = 0 then case when n < 60 then 'RareError' else 'ValueError' end end,
           case when n % 10 = 0 then 'the same long words of an error' end
    from number
    """,
)

Call = Callable[[], Awaitable[object]]


def calls(ops: Operations) -> Iterator[tuple[str, Call]]:
    """Every list, by what is asked for."""
    filters = {
        "deliveries": Filter(),
        **{f"deliveries, {status.value}": Filter(statuses=(status,)) for status in Status},
        "deliveries of a rare consumer": Filter(consumers=("rare",)),
        "deliveries of a rare type": Filter(type="rare.thing"),
        "dead letters": Filter(dead=True),
        "dead letters of a consumer": Filter(dead=True, consumers=("c10",)),
        "dead letters of a rare consumer": Filter(dead=True, consumers=("rare",)),
        "dead letters of a rare type": Filter(dead=True, type="rare.thing"),
        "dead letters of a rare error": Filter(dead=True, error_type="RareError"),
        "dead letters of a large group": Filter(dead=True, group="big"),
        "dead letters of a small group": Filter(dead=True, group="rare"),
        "discarded": Filter(discarded=True),
    }
    for name, wanted in filters.items():
        yield name, lambda wanted=wanted: ops.delivery_page(wanted)  # type: ignore[misc]
    yield "failure groups", ops.failure_groups
    yield "messages", ops.message_page
    yield "messages of a rare type", lambda: ops.message_page(type="rare.thing")
    yield "messages by key", lambda: ops.message_page(key="none")
    for task in (ops.stats, ops.queues, ops.consumers, ops.workers, ops.breakers, ops.schedules, ops.webhooks):
        yield task.__name__.removesuffix("_list"), task
    yield "stats, exact", lambda: ops.stats(exact=True)
    yield "trend", ops.trend
    yield "retrying", ops.retrying
    yield "plans", ops.plans
    yield "audit", ops.audit
    yield "preview of a group", lambda: ops.plan_replay(Filter(group="rare"), limit=100)


def screens(ops: Operations) -> Iterator[tuple[str, Call]]:
    """Every list in the console, read anew each time."""
    shown = Console(ops, lambda _: ("ada", "operator"), read_only=True)
    visitor = httpx2.AsyncClient(transport=httpx2.ASGITransport(shown.app), base_url="http://bench.test")

    async def look(path: str) -> None:
        shown.watch.forget()
        (await visitor.get(path)).raise_for_status()

    for path in SCREENS:
        if "{" not in path and path not in ("/find", "/requests"):
            yield f"console {path}", lambda path=path: look(path)  # type: ignore[misc]
    yield "console, dead letters of a large group", lambda: look("/dead?group=big&consumer=c10")


async def measured(store: Store, times: int) -> dict[str, float]:
    """The 95th percentile of each list, in milliseconds."""
    found = {}
    ops = Operations(store)
    for name, call in (*calls(ops), *screens(ops)):
        took = []
        for _ in range(times):
            started = time.perf_counter()
            await call()
            took.append((time.perf_counter() - started) * 1000)
        found[name] = sorted(took)[int(times * 0.95)]
    await store.close()
    return found


def filled(store: Store, rows: int) -> Store:
    """The store with that many deliveries, every tenth a dead letter."""
    prefix: Any = store.dialect
    statements = _POSTGRES if isinstance(store, PostgresStore) else _SQLITE
    texts = [text.replace("{hf}", prefix.prefix).replace("{rows}", str(rows)) for text in statements]
    if isinstance(store, PostgresStore):
        with psycopg.connect(store.conninfo, autocommit=True) as connection:
            for text in texts:
                connection.execute(text.encode())
    else:
        assert isinstance(store, SqliteStore)
        with sqlite3.connect(store.path) as database:
            for text in texts:
                database.execute(text)
    return store


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="How many deliveries the big store holds.")
@click.option("--times", default=30, show_default=True, help="How often each list is asked for.")
def main(rows: int, times: int) -> None:
    """Measures, and prints a table."""
    click.echo(
        f"{machine()}, load {load():.1f}\n\n| list, p95 in ms | SQLite empty | {rows:,} | PostgreSQL empty | {rows:,} |\n|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory() as folder, PostgresServer(18) as server:
        stores: list[Store] = [SqliteStore(Path(folder) / name) for name in ("empty.db", "full.db")]
        stores += [PostgresStore(server.create_database(name)) for name in ("empty", "full")]
        for store in stores:
            store.migrate()
        for store in (stores[1], stores[3]):
            filled(store, rows)
        figures = [asyncio.run(measured(store, times)) for store in stores]
        for name in figures[0]:
            click.echo(f"| {name} | {' | '.join(f'{one[name]:.1f}' for one in figures)} |")


if __name__ == "__main__":
    main()
