"""A shop whose handlers have every kind of effect: in the same database, outside of it, and failing now and then."""

import asyncio
import os
import random
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from holdfast import Context, Holdfast, RetryPolicy
from tests.engine.programs import crash

ATTEMPTS = 60
HOPELESS = 97
"""Every note whose number is a multiple of this fails permanently, after `HOPELESS_ATTEMPTS` runs."""
HOPELESS_ATTEMPTS = 12

# Doubles must show: the effect has no unique constraint.
TABLES = (
    "create table if not exists business (n bigint primary key)",
    "create table if not exists effect (n bigint not null, message_id text not null, attempt bigint not null)",
)

_own = threading.local()


def type_of(n: int) -> str:
    """Seven in ten are orders, for two consumers; the others are notes."""
    return "order.placed" if n % 10 < 7 else "note.written"


class Hopeless(Exception):
    """A note that cannot be processed."""


def build(dsn: str) -> Holdfast:
    """The shop on one database."""
    hf = Holdfast(dsn)
    often = RetryPolicy.exponential(attempts=ATTEMPTS, base=0.05, cap=0.5)

    @hf.consumer("order.placed", name="book", retry=often)
    def book(ctx: Context, order: dict[str, Any]) -> None:
        time.sleep(_seconds())
        crash.point("effect.started")
        with transaction(dsn) as db:
            values = (order["n"], str(ctx.message_id), ctx.attempt)
            db.execute(spelled(dsn, "insert into effect (n, message_id, attempt) values (?, ?, ?)"), values)
            crash.point("effect.uncommitted")
            ctx.sync.complete(conn=db)
            crash.point("effect.completed")
        crash.point("effect.committed")

    @hf.consumer("order.placed", name="post", retry=often)
    async def post(ctx: Context, order: dict[str, Any]) -> None:
        await asyncio.sleep(_seconds())
        line = f"{order['n']} {ctx.message_id}\n".encode()
        target = os.open(crash.directory() / "sink", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(target, line)
        finally:
            os.close(target)
        crash.point("sink.written")
        if random.random() < 0.05:
            raise ConnectionError("the post office is closed")

    @hf.consumer("note.written", name="note", retry=RetryPolicy.fixed(0.05, attempts=HOPELESS_ATTEMPTS))
    async def note(ctx: Context, body: dict[str, Any]) -> None:
        await asyncio.sleep(_seconds())
        if body["n"] % HOPELESS == 0:
            raise Hopeless(f"note {body['n']} makes no sense")

    return hf


def _seconds() -> float:
    """How long a handler takes. While only few events follow, it is long enough that a killed worker leaves something to take over."""
    return 0.2 if (crash.directory() / "markers" / "published").exists() and not crash.allowed("enough") else 0.0


def spelled(dsn: str, statement: str) -> str:
    return statement if dsn.startswith("sqlite") else statement.replace("?", "%s")


@contextmanager
def transaction(dsn: str) -> Iterator[Any]:
    """A transaction on this thread's own connection; one that broke is not used again."""
    db = _connection(dsn)
    try:
        if isinstance(db, sqlite3.Connection):
            db.execute("begin immediate")
        yield db
        db.commit()
    except BaseException:
        _own.db = None
        with suppress(psycopg.Error, sqlite3.Error):
            db.close()
        raise


def _connection(dsn: str) -> Any:
    if getattr(_own, "db", None) is None:
        if dsn.startswith("sqlite"):
            _own.db = sqlite3.connect(dsn.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
            _own.db.execute("pragma synchronous = full")
        else:
            _own.db = psycopg.connect(dsn, application_name="shop", connect_timeout=10)
    return _own.db


if "HOLDFAST_TEST_PLACE" in os.environ:
    crash.install()
    hf = build(os.environ["HOLDFAST_DSN"])
