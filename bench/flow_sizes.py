"""Cost of claims with flow control at sizes that do not fit into `make bench`: many keys, a hot key, a held snapshot.

`python -m bench.flow_sizes` fills PostgreSQL and SQLite and claims 50 deliveries at a time through the engine's
`FlowClaimer`. It prints microseconds per claimed row with 100 and 100,000 keys, the claims of other keys next to a key
with 300,000 deliveries, claims under a held snapshot, and the time until a free key is found behind 100,000 blocked ones.

Costs are processor time, of this process and of the server's sessions, so that the load of the machine matters little.
What is compared takes turns.
"""

import asyncio
import contextlib
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import click
import psycopg

from bench.machine import load, machine
from holdfast import Limit, Rate, WorkerOptions
from holdfast.app.declaration.flow_options import flow_settings
from holdfast.core.flow import FlowSettings
from holdfast.engine.claims.flow_claimer import FlowClaimer
from holdfast.engine.claims.slot_pool import SlotPool
from holdfast.stores.deliveries.claim import Claimed, Lane, LaneFlow, LaneList
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from tests.servers.postgres import PostgresServer
from tests.support.builders import sql

_NAME, _SIZE, _ROUNDS = "mail", 50, 40
_PATIENCE = 120.0
_OPTIONS: dict[str, dict[str, Any]] = {
    "limit": {"limit": Limit(20, by="k")},
    "order": {"order_by": "k"},
    "fair": {"fair_by": "k"},
    "rate": {"rate": Rate("100000/10s", by="k")},
}


class Lanes:
    """One consumer's deliveries in a new store, and a worker that claims them."""

    def __init__(self, store: Store, settings: FlowSettings) -> None:
        self.store, self._settings, self._filled = store, settings, 0
        self.on_postgres = isinstance(store, PostgresStore)
        self.now = store.dialect.now if isinstance(store, SqliteStore) else "now()"
        self._second = "interval '1 s'" if self.on_postgres else "1000"
        self._claims: list[Claimed] = []
        self._watch: psycopg.Connection | None = None
        pool = SlotPool(None, _SIZE)
        self._lane = Lane("default", _NAME, 0, 1, flow=LaneFlow(settings, None))
        pool.scheduler.refreshed(LaneList([self._lane]), 0.0, 0.0)
        self._claimer = FlowClaimer(store, "w1", WorkerOptions(), {}, [pool], self._accept)

    def _accept(self, pool: SlotPool, claims: list[Claimed], *, first: bool) -> None:
        self._claims.extend(claims)

    def fill(self, count: int, key: str, *, status: str = "pending") -> None:
        """`count` deliveries that became due one after another in the last hour; `key` is SQL with the number `n`."""
        self._filled += 1
        # Sorted by time as the ids of a publisher are: random ones would scatter the rows of a claim over all pages.
        uuid = "uuidv7()" if self.on_postgres else f"printf('00000000-0000-7{self._filled:03}-8000-%012x', n)"
        series = f"with recursive s (n) as (select 0 union all select n + 1 from s where n < {count - 1})"
        source = f"fill{self._filled}"
        sql(
            self.store,
            f"""insert into {{hf}}message (id, type, source, payload, headers, occurred_at, generation, sub_epoch)
            {series} select {uuid}, 'job', '{source}', '{{"k": 1}}', '{{}}', {self.now}, 0, 0 from s""",
        )
        due = f"{self.now} - {self._second} * 3600 + {self._second} * x.n / 1000"
        place = "x.position" if self._settings.order is not None else "null"
        ended = due if status == "failed" else "null"
        sql(
            self.store,
            f"""insert into {{hf}}delivery (id, message_id, consumer, queue, priority, generation, run_at, status,
              completed_at, flow_key, flow_seq)
            select {uuid}, x.id, '{_NAME}', 'default', 1, 0, {due}, '{status}', {ended}, {key}, {place}
            from (select m.id, m.position, row_number() over (order by m.position) - 1 as n from {{hf}}message m
                  where m.source = '{source}') x""",
        )

    def hold(self, where: str) -> None:
        """Another worker runs these deliveries."""
        sql(
            self.store,
            f"update {{hf}}delivery set status = 'in_flight', locked_by = 'other', flow_ticket = 1, "
            f"lease_until = {self.now} + {self._second} * 3600 where {where}",
        )

    def analyze(self) -> None:
        sql(self.store, "vacuum analyze {hf}delivery" if self.on_postgres else "analyze")

    async def claim(self) -> int:
        self._claims.clear()
        await self._claimer.claim(Counter(), lambda: None)
        return len(self._claims)

    def settle(self) -> None:
        ids = ", ".join(f"'{claim.id}'" for claim in self._claims)
        if ids:
            sql(
                self.store,
                "update {hf}delivery set status = 'delivered', locked_by = null, lease_until = null, "
                f"completed_at = {self.now} where id in ({ids})",
            )

    async def prepare(self) -> "Lanes":
        """Makes the first sweep of the lane, which otherwise continues with each claim, and a few claims."""
        while await self._claimer._adoption.sweep([self._lane]):
            pass
        ends, unmeasured = time.perf_counter() + _PATIENCE, 5
        while unmeasured and time.perf_counter() < ends:
            unmeasured -= await self.claim() > 0
            self.settle()
        return self

    def processor_time(self) -> float:
        """Seconds that this process and the server's sessions have used."""
        return self.server_time() + time.process_time()

    def server_time(self) -> float:
        """Seconds that the server's sessions have used; 0 on SQLite."""
        used = 0.0
        if isinstance(self.store, PostgresStore):
            sessions = "select pid from pg_stat_activity where datname = current_database()"
            if self._watch is None:
                self._watch = psycopg.connect(self.store.conninfo, autocommit=True)
            own = self._watch.info.backend_pid
            for (pid,) in self._watch.execute(sessions).fetchall():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    stat = Path(f"/proc/{pid}/schedstat").read_text()
                    used += int(stat.split()[0]) / 1e9 if pid != own else 0.0
        return used

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        await self.store.close()


class Cost:
    """The claimed rows of a lane and the processor time of each claim."""

    def __init__(self, lanes: Lanes) -> None:
        self.lanes, self.rows = lanes, 0
        self.times: list[float] = []

    async def claim(self) -> None:
        started = self.lanes.processor_time()
        self.rows += await self.lanes.claim()
        own = time.process_time()  # before the question to the server, which is not part of the claim
        self.times.append(own + self.lanes.server_time() - started)
        self.lanes.settle()

    @property
    def per_row(self) -> float:
        """Microseconds."""
        return sum(self.times) / max(self.rows, 1) * 1e6

    @property
    def per_claim(self) -> float:
        """Milliseconds."""
        return statistics.median(self.times) * 1000


async def measure(*lanes: Lanes) -> list[Cost]:
    """The costs of claims of these lanes, which take turns."""
    costs = [Cost(await one.prepare()) for one in lanes]
    for _ in range(_ROUNDS):
        for cost in costs:
            await cost.claim()
    for one in lanes:
        await one.close()
    return costs


Make = Callable[[], Store]
Measure = Callable[[Make, dict[str, Any]], Coroutine[Any, Any, Iterator[str]]]


async def many_keys(make: Make, options: dict[str, Any]) -> Iterator[str]:
    few, many = (Lanes(make(), _settings(options)) for _ in range(2))
    for lanes, keys in ((few, 100), (many, 100_000)):
        lanes.fill(100_000, f"'k' || (x.n * 7919 % {keys})")
        lanes.analyze()
    costs = await measure(few, many)
    lines = [
        f"{keys} keys: {cost.per_row:.0f} us a row, {cost.rows} rows"
        for keys, cost in zip((100, 100_000), costs, strict=True)
    ]
    return iter([*lines, f"{costs[1].per_row / costs[0].per_row:.2f} times as much"])


async def hot_key(make: Make, options: dict[str, Any]) -> Iterator[str]:
    hot, plain = (Lanes(make(), _settings(options)) for _ in range(2))
    for lanes in (hot, plain):
        if lanes is hot:
            lanes.fill(300_000, "'hot'")
            if "fair_by" not in options:
                lanes.hold("id in (select id from {hf}delivery order by run_at, id limit 20)")
        lanes.fill(6_000, "'k' || (x.n % 1000)")
        lanes.analyze()
    costs = await measure(hot, plain)
    return iter(
        [f"hot key: {costs[0].per_claim:.1f} ms a claim, {costs[0].rows} rows; without it {costs[1].per_claim:.1f} ms"]
    )


async def held_snapshot(make: Make, options: dict[str, Any], keys: int = 10_000) -> Iterator[str]:
    held, free = (Lanes(make(), _settings(options)) for _ in range(2))
    if not isinstance(held.store, PostgresStore):
        return iter(())
    for lanes, rows in ((held, 100_000), (free, 20_000)):
        lanes.fill(rows, f"'k' || (x.n * 7919 % {keys})")
        lanes.analyze()
    with psycopg.connect(held.store.conninfo) as other:
        other.execute("set transaction isolation level repeatable read")
        other.execute("select 1 from holdfast.delivery limit 1")
        sql(
            held.store,
            "update {hf}delivery set status = 'delivered', completed_at = now() where id in (select id from "
            "{hf}delivery where status = 'pending' order by run_at limit 80000)",
        )
        costs = await measure(held, free)
    times = costs[0].per_row / costs[1].per_row
    return iter(
        [
            f"held snapshot, 80,000 dead rows of {keys:,} keys: {times:.2f} times as much, {costs[0].per_row:.0f} us a row"
        ]
    )


async def free_key(make: Make, options: dict[str, Any]) -> Iterator[str]:
    """The free key is behind the blocked ones when the worker starts; a second one comes while it works."""
    if "fair_by" in options or "rate" in options:
        return iter(())
    lanes = Lanes(make(), _settings({**options, **({"limit": Limit(1, by="k")} if "limit" in options else {})}))
    if "order_by" in options:
        lanes.fill(100_000, "'k' || x.n", status="failed")
    else:
        lanes.fill(100_000, "'k' || x.n")
        lanes.hold("true")
    lanes.fill(100_000, "'k' || x.n")
    lanes.fill(1, "'zz1'")
    lanes.analyze()
    found = []
    for more in (True, False):
        started, used = time.perf_counter(), lanes.processor_time()
        while not await lanes.claim() and time.perf_counter() < started + _PATIENCE:
            pass
        found.append(f"{time.perf_counter() - started:.2f} s ({lanes.processor_time() - used:.2f} s of processor time)")
        lanes.settle()
        if more:
            lanes.fill(1, "'zz2'")
            sql(lanes.store, f"update {{hf}}delivery set run_at = {lanes.now} where flow_key = 'zz2'")
    await lanes.close()
    return iter([f"free key behind 100,000 blocked: at the start after {found[0]}, later {found[1]}"])


def _settings(options: dict[str, Any]) -> FlowSettings:
    settings = flow_settings(options)
    assert settings is not None
    return settings


@contextlib.contextmanager
def stores(kind: str) -> Iterator[Make]:
    """Makes new stores; each is migrated."""
    number = 0

    def migrated(store: PostgresStore | SqliteStore) -> Store:
        store.migrate()
        return store

    if kind == "sqlite":
        with tempfile.TemporaryDirectory() as directory:

            def file() -> Store:
                nonlocal number
                number += 1
                return migrated(SqliteStore(Path(directory) / f"{number}.db"))

            yield file
        return
    with PostgresServer(18) as server:

        def database() -> Store:
            nonlocal number
            number += 1
            return migrated(PostgresStore(server.create_database(f"sizes{number}")))

        yield database


_SIZES: dict[str, Measure] = {
    "keys": many_keys,
    "hot": hot_key,
    "held": held_snapshot,
    "held-few": partial(held_snapshot, keys=100),
    "free": free_key,
}


@click.command()
@click.option("--store", "kinds", multiple=True, type=click.Choice(["postgres", "sqlite"]))
@click.option("--size", "sizes", multiple=True, type=click.Choice(list(_SIZES)))
@click.option("--option", "names", multiple=True, type=click.Choice(list(_OPTIONS)))
def main(kinds: tuple[str, ...], sizes: tuple[str, ...], names: tuple[str, ...]) -> None:
    """Measures claims with flow control at large sizes."""
    print(machine(), flush=True)
    for kind in kinds or ("postgres", "sqlite"):
        with stores(kind) as make:
            for size in sizes or _SIZES:
                for name in names or _OPTIONS:
                    for line in asyncio.run(_SIZES[size](make, _OPTIONS[name])):
                        print(f"{kind}, {name}: {line} (load {load():.1f})", flush=True)


if __name__ == "__main__":
    main()
