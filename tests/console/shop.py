"""A shop's store after failures: a deploy broke the warehouse, a partner is unavailable, most other work continues."""

import sqlite3
from datetime import UTC, datetime, timedelta
from uuid import UUID

from holdfast.core.change import DeadLetter, Deliver, Retry
from holdfast.core.failures.report import ErrorReport, report
from holdfast.core.identity import uuid7
from holdfast.core.message import NewMessage, new_message
from holdfast.core.retry import RetryPolicy
from holdfast.outbound.webhooks.endpoint import new_endpoint
from holdfast.outbound.webhooks.options import WebhookOptions
from holdfast.stores.admin.actions import block_consumer, discard, pause_queue
from holdfast.stores.deliveries.settle import settle
from holdfast.stores.deliveries.worker import start_worker
from holdfast.stores.integrations.breaker import trip_breaker
from holdfast.stores.integrations.idempotency import Reservation, StoredResponse, reserve, store_response
from holdfast.stores.integrations.webhook import add_endpoint
from holdfast.stores.messages.schedule import save_schedules
from holdfast.stores.protocol import Store
from holdfast.stores.sqlite.store import SqliteStore
from tests.support.builders import claim_all, job, outcome, put, register_consumers

WORKER = "web-1/4711/ab12cd"
BROKEN = 28
DECLINED = 5
SHELVES = {"KETTLE": "A1", "CUP": "B1"}


async def furnish(store: Store, *, orders: int = 60, over: timedelta = timedelta(0)) -> None:
    """Orders, of which `BROKEN` died in the warehouse and `DECLINED` at billing; spread over the time before now."""
    await register_consumers(
        store, {"billing": ["order.placed"]}, queue="payments", retry=RetryPolicy.fixed(1, attempts=2)
    )
    await register_consumers(store, {"stock": ["order.placed"]}, queue="warehouse", generation=42)
    await register_consumers(store, {"receipts": ["order.*"], "welcome": []}, queue="mail")
    await register_consumers(store, {"search": ["order.*"], "nightly_report": []}, queue="default")
    await store.run(save_schedules([("nightly_report", "0 7 * * *", "Europe/Berlin", "last")]))
    await store.run(
        add_endpoint(
            new_endpoint("https://hooks.acme.example/in", events=["order.*"], options=WebhookOptions(), tenant="acme"),
            "ada",
        )
    )
    await store.run(start_worker("web-0/811/ffe012", 41, [], ["billing", "receipts"], timedelta(0)))
    await store.run(
        start_worker(WORKER, 42, [], ["billing", "stock", "receipts", "welcome", "search"], timedelta(hours=4))
    )
    await put(store, *(_order(n, orders, over) for n in range(orders)))
    await put(store, *(job("welcome", {"user": n}, queue="mail", delay=timedelta(minutes=5)) for n in range(3)))
    await _run(store)
    await store.run(discard([await _first_of(store, "billing")], "ada", "test order"))
    await store.run(pause_queue("mail", "ada", "mail provider asked for a break"))
    await store.run(block_consumer("search", "search cluster", timedelta(hours=1), WORKER))
    await store.run(trip_breaker("partner", timedelta(minutes=20), "partner-watch", "five time-outs in a row"))
    for n in range(3):
        held = Reservation("user:7", f"checkout-{n}", "h", f"owner-{n}", "POST", "/orders")
        await store.run(reserve(held, timedelta(minutes=1), timedelta(days=1)))
        if n:
            await store.run(store_response(held, StoredResponse(201 if n == 1 else 422, (), b"{}")))
    if over:
        _spread(store)


async def _run(store: Store) -> None:
    broken = declined = late = busy = 0
    ended = []
    for one in await claim_all(store, WORKER, generation=42, limit=1000):
        if one.consumer == "stock" and broken < BROKEN:
            broken += 1
            ended.append(outcome(one, DeadLetter(), error=_failed(lambda: SHELVES["kettle"])))
        elif one.consumer == "billing" and declined < DECLINED:
            declined += 1
            ended.append(outcome(one, DeadLetter(), error=_failed(_decline)))
        elif one.consumer == "receipts" and late < 9:
            late += 1
            ended.append(outcome(one, Retry(timedelta(minutes=2)), error=_failed(_time_out)))
        elif one.consumer == "search" and busy < 5:
            busy += 1  # still in flight
        elif one.consumer != "welcome":
            ended.append(outcome(one, Deliver()))
    assert len(await store.run(settle(WORKER, ended))) == len(ended)


async def _first_of(store: Store, consumer: str) -> UUID:
    from holdfast.stores.queries.query import Filter, deliveries

    found = await store.run(deliveries(Filter(consumers=(consumer,), dead=True), 1000))
    return found[-1].delivery.id


def _order(n: int, orders: int, over: timedelta) -> NewMessage:
    at = datetime.now(UTC) - over * ((orders - n) / orders)
    return new_message(
        id=uuid7(int(at.timestamp() * 1000), n << 40),
        type="order.placed",
        source="shop",
        payload={"order_id": n, "sku": "KETTLE" if n % 2 else "CUP", "cents": 4900 + n, "note": "please gift-wrap"},
        key=f"order:{n}:placed:v1",
        headers={"request_id": f"req-{n:06x}", "user_id": f"u_{n}"},
        generation=42,
        occurred_at=at,
    )


def _decline() -> None:
    raise PermissionError("card declined: insufficient funds")


def _time_out() -> None:
    raise TimeoutError("smtp.mail.example did not answer within 5 s")


def _failed(act: object) -> ErrorReport:
    try:
        act()  # type: ignore[operator]
    except (KeyError, OSError) as error:
        return report(error)
    raise AssertionError("unreachable")


def _spread(store: Store) -> None:
    """Moves what was made and done to when its message was published: SQLite alone, for looking at."""
    assert isinstance(store, SqliteStore)
    with sqlite3.connect(store.path, isolation_level=None) as conn:
        hf = store.dialect.prefix
        rows = conn.execute(f"select id from {hf}delivery").fetchall()
        for (id,) in rows:
            at = UUID(id).int >> 80
            conn.execute(
                f"update {hf}delivery set created_at = ?1, claimed_at = ?1 + 20, completed_at = case when completed_at is null "
                "then null else ?1 + 900 end, first_failed_at = case when first_failed_at is null then null else ?1 + 400 end where id = ?2",
                (at, id),
            )
            conn.execute(
                f"update {hf}run set started_at = ?1 + 20, completed_at = ?1 + 900 where delivery_id = ?2", (at, id)
            )
        began = min(UUID(id).int >> 80 for (id,) in rows) - 180_000
        conn.execute(f"update {hf}worker set started_at = ?", (began,))
        conn.execute(f"update {hf}audit set at = at - 600000")
        conn.execute(f"update {hf}queue set paused_at = paused_at - 600000")
    conn.close()
