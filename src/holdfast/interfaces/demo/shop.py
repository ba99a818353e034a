"""The shop: an ordinary application that uses Holdfast.

An order and its event are written in one transaction. Four consumers handle the event:

- `receipts` sends mail: at least once, with a stable id.
- `billing` writes a charge to the shop's database: exactly once, by `ctx.complete`.
- `stock` writes a stock move, exactly once. Release 1.1 has a bug here.
- `webhooks` calls a partner over HTTP through a circuit breaker.
"""

import json
import smtplib
import time
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from urllib.request import ProxyHandler, Request, build_opener

from holdfast import Context, Holdfast, RetryPolicy, event
from holdfast.interfaces.demo.config import DemoConfig
from holdfast.interfaces.demo.database import Database, open_database

CONSUMERS = ("receipts", "billing", "stock", "webhooks")
SHELVES = {"KETTLE": "A1", "TEAPOT": "A2", "CUP": "B1", "SPOON": "C7"}


@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int
    email: str
    sku: str
    cents: int


class ChangedTheirMind(Exception):
    """The customer cancelled: the order and its event roll back."""


@dataclass(frozen=True, slots=True)
class Shop:
    """The shop's app and its database."""

    hf: Holdfast
    database: Database

    def place_order(self, email: str, sku: str, cents: int, *, leaves: bool = False) -> int:
        """Stores an order and its event in one commit: both or neither."""
        with self.database.transaction() as conn:
            order_id = self.database.insert(conn, "orders", email=email, sku=sku, cents=cents)
            placed = OrderPlaced(order_id, email, sku, cents)
            self.hf.sync.publish(placed, conn=conn, key=f"order:{order_id}:placed:v1")
            if leaves:
                raise ChangedTheirMind
        return order_id


def open_shop(config: DemoConfig) -> Shop:
    """Declares the shop's consumers on an app. Does not connect yet."""
    hf = Holdfast(config.dsn, schema=config.schema, source="shop", generation=0)
    database = open_database(config.dsn, config.schema)
    partner = hf.breaker("partner", threshold=5, cooldown=1, probe_timeout=2)  # shared by all worker processes
    http = build_opener(ProxyHandler({}))  # the partner is on this machine: ignore proxy settings
    many_attempts = RetryPolicy.exponential(attempts=30, base=0.4, cap=2, jitter="equal")

    @hf.consumer(OrderPlaced, queue="mail", retry=many_attempts)
    def receipts(ctx: Context, order: OrderPlaced) -> None:
        mail = EmailMessage()
        mail["To"], mail["From"], mail["Subject"] = order.email, "shop@shop.test", f"Order {order.order_id}"
        mail["Message-ID"] = (
            f"<{ctx.message_id}@shop.test>"  # the same in every retry, so that duplicates can be detected
        )
        mail.set_content(f"One {order.sku.lower()}, {order.cents / 100:.2f} EUR. Thank you!")
        with smtplib.SMTP("127.0.0.1", config.mail_port, "shop.test", timeout=5) as server:
            server.send_message(mail)

    @hf.consumer(OrderPlaced, queue="payments", retry=RetryPolicy.exponential(base=0.2))
    def billing(ctx: Context, order: OrderPlaced) -> None:
        with database.transaction() as conn:
            database.insert(conn, "charges", order_id=order.order_id, cents=order.cents)
            ctx.sync.complete(conn=conn)  # the charge and "delivered": one commit
        print_invoice()  # a crash here does not charge again: the delivery is already delivered

    @hf.consumer(OrderPlaced, queue="warehouse", retry=RetryPolicy.fixed(0.2, attempts=3))
    def stock(ctx: Context, order: OrderPlaced) -> None:
        shelf = shelf_of(order.sku, config.release)
        with database.transaction() as conn:
            database.insert(conn, "stock_moves", order_id=order.order_id, shelf=shelf)
            ctx.sync.complete(conn=conn)

    @hf.consumer(OrderPlaced, queue="partners", retry=many_attempts)
    def webhooks(ctx: Context, order: OrderPlaced) -> None:
        request = Request(
            f"http://127.0.0.1:{config.webhook_port}/orders",
            data=json.dumps(asdict(order)).encode(),
            headers={"content-type": "application/json", "webhook-id": str(ctx.message_id)},
        )
        with partner.sync.guard(), http.open(request, timeout=2):
            pass

    return Shop(hf, database)


def print_invoice() -> None:
    """Simulates slow work after the commit."""
    time.sleep(0.1)


def shelf_of(sku: str, release: int) -> str:
    """The shelf of an article. Every odd release has a bug: it looks up the lower-case name."""
    return SHELVES[sku.lower() if release % 2 else sku]
