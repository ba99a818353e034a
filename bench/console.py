"""The processor time of each page of the console, with a million deliveries of which 100,200 are dead letters.

`python -m bench.console` fills SQLite and PostgreSQL with `bench.incident` and reads every page without caches. It
prints milliseconds of processor time per request, of the console's process, which runs SQLite too, and of PostgreSQL's
sessions, and the elapsed time. Processor time stays comparable on a busy machine, where elapsed time does not. `--sqlite`
and `--postgres` keep or reuse a filled store, so that a change is measured without filling it again.
"""

import asyncio
import re
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

import click
import httpx2
import psutil

from bench.incident import GROUPS, fill
from bench.machine import load, machine
from holdfast.interfaces.console.app import PAGES, Console
from holdfast.ops.service import Operations
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.queries.query import Filter
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer

_LARGE = f"group={GROUPS[0].fingerprint}&consumer={GROUPS[0].consumer}"
_SKIPPED = ("/find", "/requests", "/search")
_MORE = {
    "overview, 30 days": "/?since=30d",
    "overview, a minute": "/?since=11m&until=10m",
    "groups of a consumer": "/groups?consumer=billing",
    "dead letters of a large group": f"/dead?{_LARGE}",
    "dead letters of a small group": f"/dead?group={GROUPS[-1].fingerprint}",
    "dead letters of an hour": "/dead?since=1h",
    "deliveries, pending": "/deliveries?status=pending",
    "deliveries of a rare type": "/deliveries?type=rare.thing",
    "tenants, one": "/tenants?tenant=t7",
    "search that finds nothing": "/search?q=nothing+such",
    "search for a tenant": "/search?q=tenant-7",
}


async def paths(ops: Operations) -> dict[str, str]:
    """The address of each page by its name."""
    listed = {path: path for path in PAGES if "{" not in path and path not in _SKIPPED}
    dead = (await ops.deliveries(Filter(dead=True, group=GROUPS[0].fingerprint), limit=1))[0].delivery
    one = {"a dead letter": f"/deliveries/{dead.id}", "compare": f"/compare?left={dead.id}"}
    return {**listed, **_MORE, **one}


class Processor:
    """The processor time of this process and of the sessions of a PostgreSQL server, in seconds."""

    def __init__(self, postmaster: int | None) -> None:
        self._server = None if postmaster is None else psutil.Process(postmaster)

    def seconds(self) -> float:
        return time.process_time() + sum(self._sessions().values())

    def _sessions(self) -> Mapping[int, float]:
        if self._server is None:
            return {}
        # The first number of this file is nanoseconds; the times of /proc/PID/stat have a resolution of 10 ms.
        return {
            one.pid: int(Path(f"/proc/{one.pid}/schedstat").read_text().split()[0]) / 1e9
            for one in self._server.children()
            # `postgres: user database address(port) …`; not the checkpointer and other processes of the server.
            if re.search(r"\(\d+\)", " ".join(one.cmdline()))
        }


class Cost(NamedTuple):
    """Milliseconds that a page took."""

    median: float
    """Of the processor time, like the next one."""
    p95: float
    elapsed_p95: float


async def measured(store: Store, processor: Processor, seconds: float, only: str) -> dict[str, Cost]:
    """The cost of each page; each is read for `seconds`, and at least five times."""
    found = {}
    ops = Operations(store)
    console = Console(ops, lambda _: ("ada", "operator"), read_only=True)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(console.app), base_url="http://bench.test") as client:

        async def read(path: str) -> None:
            console.cache.invalidate()
            (await client.get(path)).raise_for_status()

        for name, path in (await paths(ops)).items():
            if only in name:
                found[name] = await _times(read, path, processor, seconds)
    await store.close()
    return found


async def _times(read: Callable[[str], Awaitable[None]], path: str, processor: Processor, seconds: float) -> Cost:
    await read(path)  # Unmeasured: it compiles templates and fills the caches of the database.
    until, used, elapsed = time.monotonic() + seconds, list[float](), list[float]()
    while len(used) < 5 or (time.monotonic() < until and len(used) < 50):
        began, started = processor.seconds(), time.perf_counter()
        await read(path)
        elapsed.append((time.perf_counter() - started) * 1000)
        used.append((processor.seconds() - began) * 1000)
    last = int(len(used) * 0.95)
    return Cost(median(used), sorted(used)[last], sorted(elapsed)[last])


def _stores(
    stack: ExitStack, rows: int, sqlite: Path | None, postgres: str | None
) -> Iterator[tuple[str, Store, int | None]]:
    if sqlite is None:
        sqlite = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "full.db"
    is_new = not sqlite.exists()
    file = SqliteStore(sqlite)
    if is_new:
        file.migrate()
        fill(file, rows)
    yield "SQLite", file, None
    if postgres is None:
        server = stack.enter_context(PostgresServer(18))
        database = PostgresStore(server.create_database("full"))
        database.migrate()
        fill(database, rows)
        yield "PostgreSQL 18", database, server.pid
    else:
        dsn, _, postmaster = postgres.partition("#")
        yield "PostgreSQL", PostgresStore(dsn), int(postmaster)


@click.command()
@click.option("--rows", default=1_000_000, show_default=True, help="The number of deliveries in a new store.")
@click.option("--seconds", default=1.0, show_default=True, help="How long each page is read.")
@click.option("--only", default="", help="Measure pages whose name contains this text.")
@click.option("--sqlite", type=click.Path(path_type=Path), help="Use this file, and fill it if it does not exist.")
@click.option("--postgres", help="Use this filled database: its DSN, # and the process ID of its server.")
def main(rows: int, seconds: float, only: str, sqlite: Path | None, postgres: str | None) -> None:
    """Measures, and prints a table."""
    click.echo(f"{machine()}, load {load():.1f}\n")
    with ExitStack() as stack:
        results = {
            title: asyncio.run(measured(store, Processor(postmaster), seconds, only))
            for title, store, postmaster in _stores(stack, rows, sqlite, postgres)
        }
    click.echo(
        "| page, ms of processor time, median / p95; elapsed p95 | "
        + " | ".join(results)
        + " |\n|---|"
        + "---|" * len(results)
    )
    for name in next(iter(results.values())):
        cells = (
            f"{one[name].median:.1f} / {one[name].p95:.1f}; {one[name].elapsed_p95:.1f}" for one in results.values()
        )
        click.echo(f"| {name} | {' | '.join(cells)} |")
    click.echo(f"\nload {load():.1f}")


if __name__ == "__main__":
    main()
