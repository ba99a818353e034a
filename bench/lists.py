"""What operators' lists and charts cost on a large store compared with an empty one. `bench.console` measures pages.

`python -m bench.lists` fills PostgreSQL and SQLite with `bench.incident` (a million deliveries, 100,200 dead letters in
five groups), reads every list once unmeasured, then a number of times, and prints the 95th percentile in milliseconds. Rare things are the
oldest, which is the worst case.
"""

import asyncio
import contextlib
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from bench.incident import GROUPS, fill
from bench.machine import load, machine
from holdfast.core.delivery import Status
from holdfast.core.errors import NotFound
from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer

Call = Callable[[], Awaitable[object]]


def calls(ops: Operations) -> Iterator[tuple[str, Call]]:
    """Every list, by what is asked for."""
    now = datetime.now(UTC)
    filters = {
        "deliveries": Filter(),
        **{f"deliveries, {status.value}": Filter(statuses=(status,)) for status in Status},
        "deliveries of a rare consumer": Filter(consumers=("rare",)),
        "deliveries of a rare type": Filter(type="rare.thing"),
        "dead letters": Filter(dead=True),
        "dead letters of a consumer": Filter(dead=True, consumers=("billing",)),
        "dead letters of a rare consumer": Filter(dead=True, consumers=("export",)),
        "dead letters of a rare type": Filter(dead=True, type="rare.thing"),
        "dead letters of a rare type and its relatives": Filter(dead=True, type="rare.*"),
        "dead letters of a rare error": Filter(dead=True, error_type="ValueError"),
        "dead letters of no such error": Filter(dead=True, error_type="NoSuchError"),
        "dead letters of a consumer and a rare type": Filter(dead=True, consumers=("billing",), type="rare.thing"),
        "dead letters of a rare type in an hour": Filter(
            dead=True, type="rare.thing", since=now - timedelta(hours=1), until=now
        ),
        "dead letters of a large group": Filter(dead=True, group=GROUPS[0].fingerprint),
        "dead letters of a small group": Filter(dead=True, group=GROUPS[-1].fingerprint),
        "dead letters of no such queue": Filter(dead=True, queue="none"),
        "dead letters of a day long ago": Filter(
            dead=True, since=now - timedelta(days=101), until=now - timedelta(days=100)
        ),
        "deliveries of no such queue": Filter(queue="none"),
        "deliveries of a day long ago": Filter(since=now - timedelta(days=101), until=now - timedelta(days=100)),
        "replayed": Filter(replayed=True),
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
    yield "trend of 30 days", lambda: ops.trend(since=now - timedelta(days=30))
    yield "tenants", ops.tenants
    yield "doctor", ops.doctor
    yield "metrics", ops.metrics
    yield "retrying", ops.retrying
    yield "search that finds nothing", lambda: ops.search("nothing such")
    yield "search for a rare error", lambda: ops.search(GROUPS[-1].error_type)
    yield "plans", ops.plans
    yield "audit", ops.audit
    yield "preview of a group", lambda: preview(ops)


async def preview(ops: Operations) -> None:
    """A preview of a small group; an empty store has none."""
    with contextlib.suppress(NotFound):
        await ops.plan_replay(Filter(group=GROUPS[-1].fingerprint), limit=100)


async def measured(store: Store, times: int) -> dict[str, float]:
    """The 95th percentile of each list, in milliseconds."""
    found = {}
    ops = Operations(store)
    for name, call in calls(ops):
        await call()  # Unmeasured: it fills the caches of the database.
        took = []
        for _ in range(times):
            started = time.perf_counter()
            await call()
            took.append((time.perf_counter() - started) * 1000)
        found[name] = sorted(took)[int(times * 0.95)]
    await store.close()
    return found


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
            fill(store, rows)
        figures = [asyncio.run(measured(store, times)) for store in stores]
        for name in figures[0]:
            click.echo(f"| {name} | {' | '.join(f'{one[name]:.1f}' for one in figures)} |")


if __name__ == "__main__":
    main()
