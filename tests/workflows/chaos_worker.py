"""A worker that dies: runs of a graph with branches, a join, items, a wait with a time-out, a child and undo steps.

Each effect is written in the transaction that completes its step, so that a second one would be a duplicate row.
"""

import os
import random
import sqlite3
import time
from contextlib import closing
from typing import Any

import psycopg

from holdfast import Holdfast, MappedStep, RetryPolicy, Step, TerminalError

PATIENT = RetryPolicy.fixed(0.05, attempts=100)


def connect(dsn: str) -> Any:
    if dsn.startswith("sqlite"):
        return sqlite3.connect(dsn.removeprefix("sqlite:///"), timeout=20, isolation_level="IMMEDIATE")
    return psycopg.connect(dsn)


def effect(dsn: str, ctx: Step | MappedStep, step: str, result: object = None) -> None:
    with closing(connect(dsn)) as conn:
        conn.execute(f"insert into effect values ('{ctx.run_id}', '{step}')")
        ctx.sync.complete(conn=conn, result=result)
        conn.commit()


def declare(dsn: str) -> tuple[Holdfast, Any]:
    hf = Holdfast(dsn)
    child = hf.workflow("child")

    @child.step(retry=PATIENT)
    def work(ctx: Step, n: int) -> None:
        effect(dsn, ctx, "child", n)

    flow = hf.workflow("flow")

    def undo(ctx: Step) -> None:
        effect(dsn, ctx, "undo")

    @flow.step(retry=PATIENT, undo=undo)
    def reserve(ctx: Step, n: int) -> None:
        effect(dsn, ctx, "reserve", n)

    @flow.step(after=reserve, retry=PATIENT)
    def left(ctx: Step) -> int:
        kept: int = ctx.sync.step("chance", lambda: random.randrange(10))
        time.sleep(random.uniform(0, 0.05))
        return kept

    @flow.step(mapped=True, retry=PATIENT)
    def item(ctx: MappedStep, number: int) -> None:
        effect(dsn, ctx, f"item {number}", number)

    @flow.step(after=reserve, retry=PATIENT)
    def right(ctx: Step) -> int:
        return len(ctx.sync.map(item, range(3)))

    @flow.step(after=reserve, retry=PATIENT)
    async def ask(ctx: Step) -> bool:
        return await ctx.wait("go", timeout=0.5) is not None

    @flow.step(after=[left, right, ask], retry=PATIENT)
    async def join(ctx: Step, n: int, left: int, right: int) -> int:
        if n % 5 == 0:
            raise TerminalError("declined")
        done: int = await ctx.child(child, n)
        return done

    return hf, flow


# A worker imports it, and so does the child process of a worker that runs what was hit by two kills.
if dsn := os.environ.get("CHAOS_DSN"):
    hf, _ = declare(dsn)
