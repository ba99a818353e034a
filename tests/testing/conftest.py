"""The test harness is tested as a user would use it: by overriding its fixtures."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from holdfast import Context, Holdfast, LeaseLost, RetryPolicy, event
from tests.servers.postgres import PostgresServer

pytest_plugins = ()


@event("order.placed")
@dataclass
class OrderPlaced:
    order_id: int
    email: str


class Shop:
    """A small application with one durable consumer and one job."""

    def __init__(self) -> None:
        self.hf = hf = Holdfast("sqlite:////nowhere/production.db")
        self.billed: list[int] = []
        self.attempts: list[int] = []

        @hf.consumer(OrderPlaced, retry=RetryPolicy.exponential(attempts=4, base="1h", cap="1d"))
        async def billing(ctx: Context, order: OrderPlaced) -> None:
            self.attempts.append(ctx.attempt)
            self.billed.append(order.order_id)

        @hf.job()
        def remind(user: str, *, times: int = 1) -> None:
            self.billed.append(times)

        self.remind = remind


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
def holdfast_app(shop: Shop) -> Holdfast:
    return shop.hf


@pytest.fixture(params=["sqlite", "postgres18"])
def holdfast_dsn(request: pytest.FixtureRequest, tmp_path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/kit.db"
        return
    server: PostgresServer = request.getfixturevalue(request.param)
    yield server.create_database("kit")
    server.drop_database("kit")


__all__ = ["LeaseLost", "OrderPlaced", "Shop"]
