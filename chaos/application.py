"""The app that the lab's workers run: a handler for each load, with an effect that can be counted."""

import asyncio
import importlib
import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from chaos.journal import SINK, Journal
from holdfast import Context, Holdfast, Limit, RetryPolicy, Step
from holdfast.brokers import redis
from holdfast.webhooks import WebhookOptions

# A duplicate must be visible: the effects have no unique constraint.
TABLES = (
    "create table chaos_business (item text primary key)",
    "create table chaos_effect (load text not null, item text not null)",
    "create table chaos_counts (bucket text primary key, items bigint not null)",
)
LIMIT = 2
STEPS = ("reserve", "left", "right", "join")
BROKERS = ("redis", "nats", "rabbitmq", "kafka")
_PATIENT = RetryPolicy.exponential(attempts=200, base=0.05, cap=0.5)
_local = threading.local()


def build(dsn: str, loads: tuple[str, ...], journal: Journal) -> tuple[Holdfast, Any]:
    """The app and its workflow, with the handlers of these loads."""
    loopback = WebhookOptions(allow_networks=("127.0.0.0/8",), allow_http=True, cooldown="1s", timeout="2s")
    hf = Holdfast(dsn, webhooks=loopback)

    @hf.consumer("chaos.publish", name="publish", retry=_PATIENT)
    async def publish(ctx: Context, body: dict[str, Any]) -> None:
        """The publication itself is what is tested."""

    @hf.consumer("chaos.work", name="work", retry=_PATIENT)
    async def work(ctx: Context, body: dict[str, Any]) -> None:
        journal.write(SINK, "work", body["item"])
        if random.random() < 0.05:
            raise ConnectionError("an outside service is unavailable")

    @hf.consumer("chaos.complete", name="complete", retry=_PATIENT)
    def complete(ctx: Context, body: dict[str, Any]) -> None:
        apply(dsn, ctx, "complete", body["item"])

    @hf.consumer("chaos.limits", name="limits", retry=_PATIENT, limit=Limit(LIMIT))
    async def limits(ctx: Context, body: dict[str, Any]) -> None:
        await asyncio.sleep(0.02)
        journal.write(SINK, "limits", body["item"])

    if "rebuild" in loads:
        _declare_projector(hf, dsn)
    if "relay" in loads:
        hf.relay("chaos.relay", to=redis.stream("chaos-relay"), name="relay", lease="2s")
    for name in BROKERS:
        if name in loads:
            _declare_broker(hf, dsn, name)
    return hf, _declare_workflow(hf, dsn)


def _declare_projector(hf: Holdfast, dsn: str) -> None:
    def reset(conn: Any) -> None:
        conn.execute("drop table if exists chaos_counts_next")
        conn.execute(TABLES[2].replace("chaos_counts", "chaos_counts_next"))

    def swap(conn: Any) -> None:
        conn.execute("drop table chaos_counts")
        conn.execute("alter table chaos_counts_next rename to chaos_counts")

    @hf.projector("chaos.rebuild", name="rebuild", reset=reset, swap=swap, retry=_PATIENT)
    def count(ctx: Context, body: dict[str, Any]) -> None:
        table = "chaos_counts_next" if ctx.rebuilding else "chaos_counts"
        statement = (
            f"insert into {table} (bucket, items) values (?, 1) "
            f"on conflict (bucket) do update set items = {table}.items + 1"
        )
        with transaction(dsn) as db:
            db.execute(spelled(dsn, statement), (body["item"],))
            ctx.sync.complete(conn=db)


def _declare_workflow(hf: Holdfast, dsn: str) -> Any:
    flow = hf.workflow("chaos")

    def effect(ctx: Step, item: str, step: str) -> None:
        with transaction(dsn) as db:
            values = ("workflows", f"{item}/{step}")
            db.execute(spelled(dsn, "insert into chaos_effect (load, item) values (?, ?)"), values)
            ctx.sync.complete(conn=db, result=None)

    @flow.step(retry=_PATIENT)
    def reserve(ctx: Step, item: str) -> None:
        effect(ctx, item, "reserve")

    @flow.step(after=reserve, retry=_PATIENT)
    def left(ctx: Step, item: str) -> None:
        effect(ctx, item, "left")

    @flow.step(after=reserve, retry=_PATIENT)
    def right(ctx: Step, item: str) -> None:
        effect(ctx, item, "right")

    @flow.step(after=[left, right], retry=_PATIENT)
    def join(ctx: Step, item: str) -> None:
        effect(ctx, item, "join")

    return flow


def _declare_broker(hf: Holdfast, dsn: str, name: str) -> None:
    """Two consumers of one stream: one stores the record first, one runs it directly."""
    module, _, function = os.environ[f"CHAOS_SOURCE_{name.upper()}"].partition(":")
    source = getattr(importlib.import_module(module), function)

    def take(ctx: Context, body: dict[str, Any]) -> None:
        apply(dsn, ctx, ctx.consumer, body["item"])

    for kind in ("stored", "direct"):
        consumer = f"{name}_{kind}"
        place = source(f"chaos-{name}", consumer)
        hf.consumer(f"chaos.{name}", name=consumer, source=place, direct=kind == "direct", retry=_PATIENT)(take)


def apply(dsn: str, ctx: Context, load: str, item: str) -> None:
    """An effect that commits together with the delivery."""
    with transaction(dsn) as db:
        db.execute(spelled(dsn, "insert into chaos_effect (load, item) values (?, ?)"), (load, item))
        ctx.sync.complete(conn=db)


def spelled(dsn: str, statement: str) -> str:
    return statement if dsn.startswith("sqlite") else statement.replace("?", "%s")


@contextmanager
def transaction(dsn: str) -> Iterator[Any]:
    """A transaction on a connection of this thread; a broken connection is not used again."""
    db = getattr(_local, "db", None) or _connect(dsn)
    _local.db = None
    try:
        if isinstance(db, sqlite3.Connection):
            db.execute("begin immediate")
        yield db
        db.commit()
    except BaseException:
        with suppress(psycopg.Error, sqlite3.Error):
            db.close()
        raise
    _local.db = db


def close_connection() -> None:
    """Closes the connection of this thread, which ends. Otherwise it stays open until garbage is collected."""
    if (db := getattr(_local, "db", None)) is not None:
        _local.db = None
        db.close()


def _connect(dsn: str) -> Any:
    if dsn.startswith("sqlite"):
        db = sqlite3.connect(dsn.removeprefix("sqlite:///"), isolation_level=None, timeout=30)
        db.execute("pragma synchronous = full")
        return db
    # As a careful user sets it: a silent connection is given up.
    limits = {"connect_timeout": 3, "keepalives_idle": 2, "keepalives_interval": 1, "tcp_user_timeout": 3000}
    return psycopg.connect(dsn, application_name="chaos", **limits)  # type: ignore[arg-type]


if "CHAOS_JOURNAL" in os.environ:
    hf, workflow = build(
        os.environ["HOLDFAST_DSN"], tuple(os.environ["CHAOS_LOADS"].split(",")), Journal.from_environment()
    )
