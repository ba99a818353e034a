"""The demo checks its result: each injected defect is found, named, and changes the exit code."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.interfaces.demo.config import DemoConfig
from holdfast.interfaces.demo.invariants import DemoResult, check_invariants
from holdfast.interfaces.demo.run import exit_code
from holdfast.interfaces.demo.services import OutsideServices
from holdfast.interfaces.demo.shop import ChangedTheirMind, Shop, open_shop

ORDERS = 3


@dataclass
class Books:
    """A shop after a quiet day, whose books can be cooked."""

    shop: Shop
    services: OutsideServices

    def tally(self) -> DemoResult:
        return check_invariants(
            self.shop.database, self.services.mail.received, self.services.partner.received, crashes=0
        )

    def cook(self, statement: str) -> None:
        with self.shop.database.transaction() as conn:
            assert conn.execute(statement).rowcount > 0


@pytest.fixture
def books(tmp_path: Path) -> Iterator[Books]:
    services = OutsideServices()
    shop = open_shop(
        DemoConfig(
            dsn=f"sqlite:///{tmp_path / 'shop.db'}",
            schema="holdfast",
            mail_port=services.mail.port,
            webhook_port=services.partner.port,
        )
    )
    services.restore()
    shop.hf.store.migrate()
    shop.database.create_tables()
    for number in range(ORDERS):
        shop.place_order(f"{number}@example.com", "CUP", 500)
    with pytest.raises(ChangedTheirMind):
        shop.place_order("leaves@example.com", "CUP", 500, leaves=True)
    shop.hf.run(until_idle=True)
    yield Books(shop, services)
    services.close()


def test_a_quiet_day_breaks_no_promise(books: Books) -> None:
    tally = books.tally()
    assert tally.problems == ()
    assert (tally.published, tally.delivered) == (ORDERS, ORDERS)
    assert (tally.retried, tally.dead, tally.replayed, tally.lost, tally.applied_twice) == (0, 0, 0, 0, 0)
    assert exit_code(tally) == 0
    assert exit_code(tally, cut_short=True) == 130


def test_what_a_visitor_set_aside_in_the_console_is_neither_done_nor_lost(books: Books) -> None:
    books.cook(
        "update holdfast_delivery set status = 'failed', discarded_at = 1 where consumer = 'stock' and id = "
        "(select min(id) from holdfast_delivery where consumer = 'stock')"
    )
    tally = books.tally()
    assert tally.problems == ()
    assert (tally.published, tally.delivered, tally.lost) == (ORDERS, ORDERS - 1, 0)


@pytest.mark.parametrize(
    ("statement", "problem", "lost", "twice"),
    [
        ("delete from charges where order_id = 1", "no effect: billing of order 1", 1, 0),
        ("delete from stock_moves where order_id = 2", "no effect: stock of order 2", 1, 0),
        (
            "insert into charges (order_id, cents) select order_id, cents from charges where order_id = 1",
            "applied twice: billing of order 1",
            0,
            1,
        ),
        (
            "insert into stock_moves (order_id, shelf) values (3, 'A1')",
            "applied twice: stock of order 3",
            0,
            1,
        ),
        ("insert into charges (order_id, cents) values (99, 1)", "belong to no order: 99", 0, 0),
        ("insert into orders (email, sku, cents) values ('x', 'CUP', 1)", "orders have no event: 4", 1, 0),
        ("delete from orders where id = 2", "events have no order: 2", 0, 0),
        (
            "delete from holdfast_delivery where consumer = 'receipts'",
            "3 deliveries are missing: receipts of order 1, receipts of order 2, receipts of order 3",
            3,
            0,
        ),
        (
            "update holdfast_delivery set status = 'pending' where consumer = 'stock'",
            "3 deliveries are still pending",
            0,
            0,
        ),
        (
            "update holdfast_delivery set status = 'failed' where consumer = 'stock'",
            "3 dead letters, but 0 replays",
            0,
            0,
        ),
    ],
)
def test_cooked_tables_are_found_out(books: Books, statement: str, problem: str, lost: int, twice: int) -> None:
    books.cook(statement)
    tally = books.tally()
    assert any(problem in found for found in tally.problems), tally.problems
    assert (tally.lost, tally.applied_twice) == (lost, twice)
    assert exit_code(tally) == exit_code(tally, cut_short=True) == 1


def test_a_receipt_that_never_arrived_is_found_out(books: Books) -> None:
    del books.services.mail.received[2]
    tally = books.tally()
    assert tally.problems == ("1 deliveries had no effect: receipts of order 2",)
    assert tally.lost == 1


def test_a_receipt_may_arrive_twice_but_only_under_its_own_id(books: Books) -> None:
    received = books.services.mail.received[1]
    received.append(received[0])
    tally = books.tally()
    assert (tally.problems, tally.received_twice, tally.applied_twice) == ((), 1, 0)
    received.append("another-id")
    assert books.tally().problems == ("1 effects have an unknown message id: another-id for order 1",)
