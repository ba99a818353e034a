"""The shop: an application as you would write it. Everything else in this folder exists to hurt it.

An order and its event are written in one transaction. Four consumers follow, each with the guarantee its effect allows:

- `receipts` sends mail. Elsewhere: at least once, under an id that never changes.
- `billing` charges, in the shop's own database. `ctx.complete` makes it exactly once.
- `stock` takes goods off the shelf, likewise. Release 1.1 will have a bug here.
- `webhooks` tells a partner over HTTP, behind a circuit breaker.
"""

import json
import smtplib
import time
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from urllib.request import ProxyHandler, Request, build_opener

from holdfast import Context, Holdfast, RetryPolicy, event
from holdfast.interfaces.demo.database import Database, open_database
from holdfast.interfaces.demo.place import Place

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
    """The customer left at the last moment: the order rolls back, and so does its event."""


@dataclass(frozen=True, slots=True)
class Shop:
    """The shop's app and the database it keeps its own tables in."""

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


def open_shop(place: Place) -> Shop:
    """Declares the shop's consumers on an app. Connects to nothing yet."""
    hf = Holdfast(place.dsn, schema=place.schema, source="shop", generation=0)
    database = open_database(place.dsn, place.schema)
    partner = hf.breaker("partner", threshold=5, cooldown=1, probe_timeout=2)  # shared by all worker processes
    http = build_opener(ProxyHandler({}))  # the partner is on this machine, whatever proxy the shell is set up for
    patient = RetryPolicy.exponential(attempts=30, base=0.4, cap=2, jitter="equal")

    @hf.consumer(OrderPlaced, queue="mail", retry=patient)
    def receipts(ctx: Context, order: OrderPlaced) -> None:
        mail = EmailMessage()
        mail["To"], mail["From"], mail["Subject"] = order.email, "shop@shop.test", f"Order {order.order_id}"
        mail["Message-ID"] = f"<{ctx.message_id}@shop.test>"  # the same in every retry: whoever gets two can tell
        mail.set_content(f"One {order.sku.lower()}, {order.cents / 100:.2f} EUR. Thank you!")
        with smtplib.SMTP("127.0.0.1", place.mail_port, "shop.test", timeout=5) as server:
            server.send_message(mail)

    @hf.consumer(OrderPlaced, queue="payments", retry=RetryPolicy.exponential(base=0.2))
    def billing(ctx: Context, order: OrderPlaced) -> None:
        with database.transaction() as conn:
            database.insert(conn, "charges", order_id=order.order_id, cents=order.cents)
            ctx.sync.complete(conn=conn)  # the charge and "delivered": one commit
        print_invoice()  # a crash in here finds the charge delivered, and does not charge again

    @hf.consumer(OrderPlaced, queue="warehouse", retry=RetryPolicy.fixed(0.2, attempts=3))
    def stock(ctx: Context, order: OrderPlaced) -> None:
        shelf = shelf_of(order.sku, place.release)
        with database.transaction() as conn:
            database.insert(conn, "stock_moves", order_id=order.order_id, shelf=shelf)
            ctx.sync.complete(conn=conn)

    @hf.consumer(OrderPlaced, queue="partners", retry=patient)
    def webhooks(ctx: Context, order: OrderPlaced) -> None:
        request = Request(
            f"http://127.0.0.1:{place.webhook_port}/orders",
            data=json.dumps(asdict(order)).encode(),
            headers={"content-type": "application/json", "webhook-id": str(ctx.message_id)},
        )
        with partner.sync.guard(), http.open(request, timeout=2):
            pass

    return Shop(hf, database)


def print_invoice() -> None:
    """Takes a while, as printers do."""
    time.sleep(0.1)


def shelf_of(sku: str, release: int) -> str:
    """Where an article lies. Every odd release has the same bug: somebody tidies the names."""
    return SHELVES[sku.lower() if release % 2 else sku]
