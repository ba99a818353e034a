"""How long a worker takes to start with many webhook endpoints in the store, and with many declared consumers.

`python -m bench.startup` fills SQLite and PostgreSQL, starts each worker in a new process, and prints seconds from `hf.work()` to the
first run of a handler: wall time, and processor time of the worker.
"""

import asyncio
import json
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import psycopg

from bench.machine import load, machine
from holdfast import Holdfast
from holdfast.core.retry import RetryPolicy
from holdfast.stores.messages.registry import Declaration, EventSubscription, register
from tests.servers.postgres import PostgresServer

_ENDPOINT = "(id, consumer, url, tenant, events, headers, secret, concurrency)"


def add_endpoints(hf: Holdfast, count: int) -> None:
    """Writes endpoints with their consumers and subscriptions, as `hf.webhooks.add` does one at a time."""
    names = [f"webhook:e{n}" for n in range(count)]
    hf.store.run_sync(
        register(
            [Declaration(name, "webhooks", 1, RetryPolicy.exponential()) for name in names],
            [EventSubscription("order.placed", name, False) for name in names],
            0,
        )
    )
    rows = [
        (f"e{n}", f"webhook:e{n}", f"https://h{n}.example/in", f"t{n}", ["order.placed"], "{}", f"whsec_{'a' * 40}", 10)
        for n in range(count)
    ]
    if hf.dsn.startswith("sqlite"):
        with sqlite3.connect(hf.dsn.removeprefix("sqlite:///")) as database:
            database.executemany(
                f"insert into holdfast_endpoint {_ENDPOINT} values (?, ?, ?, ?, ?, ?, ?, ?)",
                [(*row[:4], json.dumps(row[4]), *row[5:]) for row in rows],
            )
    else:
        with psycopg.connect(hf.dsn, autocommit=True) as connection:
            with connection.cursor().copy(f"copy holdfast.endpoint {_ENDPOINT} from stdin".encode()) as copy:
                for row in rows:
                    copy.write_row(row)
            connection.execute("vacuum (analyze)")


async def _noop(payload: object) -> None: ...


def run_worker(dsn: str, consumers: int) -> dict[str, float]:
    """Starts a worker in this process; seconds until the first run of a handler."""
    hf, ran = Holdfast(dsn), asyncio.Event()

    @hf.consumer("bench.started")
    async def started(payload: object) -> None:
        ran.set()

    for n in range(consumers):
        hf.consumer("bench.other", name=f"other-{n}")(_noop)

    async def work() -> dict[str, float]:
        stop = asyncio.Event()
        began, used = time.perf_counter(), time.process_time()
        working = asyncio.create_task(hf.work(stop=stop))
        await asyncio.sleep(0)
        await hf.publish("bench.started", {}, conn=None)
        await ran.wait()
        took = {"wall": time.perf_counter() - began, "processor": time.process_time() - used}
        stop.set()
        await working
        await hf.close()
        return took

    return asyncio.run(work())


@click.command()
@click.option("--endpoints", default=100_000, show_default=True, help="Webhook endpoints in the store.")
@click.option("--consumers", default=5_000, show_default=True, help="Consumers that the app declares.")
@click.option("--times", default=5, show_default=True, help="Starts of each worker.")
@click.option("--worker", nargs=2, type=(str, int), hidden=True)
def main(endpoints: int, consumers: int, times: int, worker: tuple[str, int] | None) -> None:
    """Measures, and prints a table."""
    if worker is not None:
        click.echo(json.dumps(run_worker(*worker)))
        return
    click.echo(f"{machine()}, load {load():.1f}\n\n| store | start with | wall, s | processor, s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, PostgresServer(18) as server:
        for case, stored, declared in (("endpoints", endpoints, 0), ("consumers", 0, consumers)):
            sqlite = f"sqlite:///{Path(folder) / case}.db"
            for name, dsn in (("SQLite", sqlite), ("PostgreSQL", server.create_database(f"startup_{case}"))):
                hf = Holdfast(dsn)
                hf.store.migrate()
                if stored:
                    add_endpoints(hf, stored)
                hf.store.close_sync()
                command = [sys.executable, "-m", "bench.startup", "--worker", dsn, str(declared)]
                found = [json.loads(subprocess.check_output(command)) for _ in range(times)]
                figures = [sorted(one[figure] for one in found) for figure in ("wall", "processor")]
                shown = " | ".join(f"{each[0]:.2f} to {each[-1]:.2f}" for each in figures)
                click.echo(f"| {name} | {stored or declared:,} {case} | {shown} |")


if __name__ == "__main__":
    main()
