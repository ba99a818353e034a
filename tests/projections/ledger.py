"""A ledger whose projectors count and remember: a loss, a double and a wrong order all show in their tables."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import psycopg

from holdfast import Context, Holdfast, RetryPolicy
from tests.engine.programs import crash
from tests.engine.programs.shop import spelled, transaction

SHAPES = {
    "totals": "(customer text primary key, orders bigint not null, cents bigint not null)",
    "latest": "(number bigint primary key, status text not null, at bigint not null)",
    "counts": "(customer text primary key, orders bigint not null)",
}
POISON = "poison"

Rows = list[tuple[Any, ...]]


def build(dsn: str) -> Holdfast:
    """The ledger on one database."""
    hf = Holdfast(dsn)
    often = RetryPolicy.fixed(0.05, attempts=60)

    @hf.projector("order.*", name="totals", reset=reset("totals"), swap=swap_in("totals"), retry=often)
    def totals(ctx: Context, order: dict[str, Any]) -> None:
        with transaction(dsn) as db:
            add(db, dsn, target(ctx, "totals"), order)
            at(ctx, "applied")
            ctx.sync.complete(conn=db)
            at(ctx, "completed")
        at(ctx, "committed")

    @hf.projector("order.*", name="latest", reset=reset("latest"), swap=swap_in("latest"), retry=often)
    def latest(ctx: Context, order: dict[str, Any]) -> None:
        if order["status"] == POISON:
            raise ValueError("this status makes no sense")
        table = target(ctx, "latest")
        with transaction(dsn) as db:
            statement = (
                f"insert into {table} (number, status, at) values (?, ?, ?) on conflict (number) do update "
                f"set status = excluded.status, at = excluded.at where {table}.at < excluded.at"
            )
            db.execute(spelled(dsn, statement), (order["number"], order["status"], order["at"]))
            ctx.sync.complete(conn=db)

    @hf.projector("order.*", name="counts", reset=empty("counts"), retry=often)
    def counts(ctx: Context, order: dict[str, Any]) -> None:
        at(ctx, "in_place")
        with transaction(dsn) as db:
            statement = (
                "insert into counts (customer, orders) values (?, 1) "
                "on conflict (customer) do update set orders = counts.orders + 1"
            )
            db.execute(spelled(dsn, statement), (order["customer"],))
            ctx.sync.complete(conn=db)

    return hf


def at(ctx: Context, point: str) -> None:
    crash.point(f"{'rebuild' if ctx.rebuilding else 'live'}.{point}")


def target(ctx: Context, table: str) -> str:
    return f"{table}_next" if ctx.rebuilding else table


def add(db: Any, dsn: str, table: str, order: dict[str, Any]) -> None:
    statement = (
        f"insert into {table} (customer, orders, cents) values (?, 1, ?) on conflict (customer) do update "
        f"set orders = {table}.orders + 1, cents = {table}.cents + excluded.cents"
    )
    db.execute(spelled(dsn, statement), (order["customer"], order["cents"]))


def reset(table: str) -> Any:
    def make_empty(conn: Any) -> None:
        conn.execute(f"drop table if exists {table}_next")
        conn.execute(f"create table {table}_next {SHAPES[table]}")
        crash.point("reset.uncommitted")

    return make_empty


def empty(table: str) -> Any:
    return lambda conn: conn.execute(f"delete from {table}")


def swap_in(table: str) -> Any:
    def swap(conn: Any) -> None:
        crash.point("swap.started")
        conn.execute(f"drop table {table}")
        conn.execute(f"alter table {table}_next rename to {table}")
        crash.point("swap.uncommitted")

    return swap


def tables(hf: Holdfast) -> None:
    """Makes the store's tables and the ledger's own."""
    if hf.dsn.startswith("sqlite"):
        hf.store.migrate()
    for name, shape in SHAPES.items():
        ask(hf.dsn, f"drop table if exists {name}_next")
        ask(hf.dsn, f"drop table if exists {name}")
        ask(hf.dsn, f"create table {name} {shape}")


def ask(dsn: str, text: str) -> Rows:
    """One statement of the test's own, committed."""
    connect: Any = partial(sqlite3.connect, timeout=30) if dsn.startswith("sqlite") else psycopg.connect
    with closing(connect(dsn.removeprefix("sqlite:///"))) as db, db:
        cursor = db.execute(text)
        return sorted(cursor.fetchall()) if cursor.description else []


def result(dsn: str, table: str) -> Rows:
    return ask(dsn, f"select * from {table}")


def order(n: int, *, number: int | None = None, status: str = "placed") -> tuple[str, dict[str, Any]]:
    """The n-th event: of one of seven customers, about one of 40 orders."""
    number = n % 40 if number is None else number
    body = {"customer": f"c{n % 7}", "cents": n, "number": number, "status": f"{status}-{n}", "at": n}
    return "order.changed", body


def expected(events: Sequence[tuple[str, dict[str, Any]]]) -> dict[str, Rows]:
    """What the tables must hold after these events, each applied once."""
    totals: dict[str, list[int]] = {}
    latest: dict[int, tuple[str, int]] = {}
    for _, body in events:
        kept = totals.setdefault(body["customer"], [0, 0])
        kept[0] += 1
        kept[1] += body["cents"]
        if body["at"] >= latest.get(body["number"], ("", -1))[1]:
            latest[body["number"]] = (body["status"], body["at"])
    return {
        "totals": sorted((customer, *kept) for customer, kept in totals.items()),
        "latest": sorted((number, *kept) for number, kept in latest.items()),
        "counts": sorted((customer, kept[0]) for customer, kept in totals.items()),
    }


def __getattr__(name: str) -> Any:
    """`hf`, for programs that get their database from the environment."""
    if name != "hf":
        raise AttributeError(name)
    if "HOLDFAST_TEST_PLACE" in os.environ:
        crash.install()
    return build(os.environ["HOLDFAST_DSN"])
