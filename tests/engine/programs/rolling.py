"""A shop that every release can run: only the public API, so that the code of an older commit loads it too.

As an app it notes which process ran what. As a program it publishes numbers until the file `stop` exists.
"""

import asyncio
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import psycopg

from holdfast import Context, Holdfast, Limit, RetryPolicy, Step

DSN, NAME = os.environ["HOLDFAST_DSN"], os.environ["HOLDFAST_TEST_NAME"]
PLACE = Path(os.environ["HOLDFAST_TEST_PLACE"])

hf = Holdfast(DSN, source="rolling")
soon = RetryPolicy.fixed(0.05, attempts=20)


def note(text: str) -> None:
    target = os.open(PLACE / "sink", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(target, f"{text} by {NAME}\n".encode())
    finally:
        os.close(target)


@hf.consumer("order.placed", retry=soon)
async def post(ctx: Context, order: dict[str, Any]) -> None:
    """Fails the first time for every seventh number."""
    if order["n"] % 7 == 0 and ctx.attempt == 1:
        raise ConnectionError("the post office is closed")
    await asyncio.sleep(0.01)
    note(f"post {order['n']}")


@hf.consumer("order.placed", retry=soon)
def book(ctx: Context, order: dict[str, Any]) -> None:
    """An effect in the same database."""
    values = (order["n"],)
    if DSN.startswith("sqlite"):
        db = sqlite3.connect(DSN.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        try:
            db.execute("pragma synchronous = full")
            db.execute("begin immediate")
            db.execute("insert into effect (n) values (?)", values)
            ctx.sync.complete(conn=db)
            db.execute("commit")
        finally:
            db.close()
        return
    with psycopg.connect(DSN) as connection:
        connection.execute("insert into effect (n) values (%s)", values)
        ctx.sync.complete(conn=connection)


@hf.consumer("order.placed", retry=soon, order_by="customer", limit=Limit(3))
async def ledger(ctx: Context, order: dict[str, Any]) -> None:
    note(f"ledger {order['customer']} {order['n']}")


@hf.job(result="1h", retry=soon)
async def price(n: int) -> int:
    return 2 * n


trip = hf.workflow("trip")


@trip.step(retry=soon)
async def reserve(ctx: Step, n: int) -> int:
    return n + 1


@trip.step(after=reserve, retry=soon)
async def charge(ctx: Step, n: int, reserve: int) -> int:
    note(f"trip {n}")
    return reserve


async def publish(first: int) -> None:
    """Numbers from `first` on, each accepted before it is noted."""
    n = first
    async with hf.lifespan():
        while not (PLACE / "stop").exists():
            await hf.publish("order.placed", {"n": n, "customer": f"c{first}-{n % 3}"}, conn=None, key=f"order:{n}")
            await price.enqueue(n)
            if n % 5 == 0:
                await trip.using(conn=None, key=f"trip:{n}").start(n)
            with (PLACE / f"accepted-{first}").open("a") as accepted:
                accepted.write(f"{n}\n")
            n += 1
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    asyncio.run(publish(int(sys.argv[1])))
