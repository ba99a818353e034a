"""A consumer behind an open circuit, end to end: its deliveries park, none is lost, none is dead."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from holdfast import Context, Holdfast, RetryPolicy, WorkerOptions
from holdfast.core.circuit import CircuitState
from holdfast.core.delivery import Status
from holdfast.stores.queries.query import Filter, deliveries
from holdfast.testing.harness import Harness
from tests.servers.postgres import PostgresServer

ORDERS = 20


class Mailer:
    """Sends mail through a server that may be down."""

    def __init__(self) -> None:
        self.hf = hf = Holdfast("sqlite:////nowhere/production.db")
        self.up, self.asked, self.sent = False, 0, list[int]()
        self.breaker = hf.breaker("smtp", threshold=3, cooldown="5m", jitter=0)
        assert hf.breaker("smtp") is self.breaker

        @hf.consumer("order.placed", name="mail", retry=RetryPolicy.fixed("1s", attempts=2))
        async def mail(ctx: Context, order: dict) -> None:
            async with self.breaker.guard():
                self.asked += 1
                if not self.up:
                    raise ConnectionError("the mail server is down")
            self.sent.append(order["id"])


@pytest.fixture
def mailer() -> Mailer:
    return Mailer()


@pytest.fixture
def holdfast_app(mailer: Mailer) -> Holdfast:
    return mailer.hf


@pytest.fixture(params=["sqlite", "postgres18"])
def holdfast_dsn(request: pytest.FixtureRequest, tmp_path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/kit.db"
        return
    server: PostgresServer = request.getfixturevalue(request.param)
    yield server.create_database("parking")
    server.drop_database("parking")


async def test_deliveries_park_while_the_circuit_is_open_and_are_delivered_when_it_closes(
    holdfast: Harness, mailer: Mailer
) -> None:
    hf = mailer.hf
    for number in range(ORDERS):
        await hf.publish("order.placed", {"id": number}, conn=None)
    once = WorkerOptions(
        until_idle=True, idle_limit=timedelta(0), cron=False, concurrency=2, poll=timedelta(milliseconds=5)
    )
    await hf.work(once)
    assert 3 <= mailer.asked <= 4  # two were under way when it opened
    listed = [one.delivery for one in await hf.store.run(deliveries(Filter(consumers=("mail",)), 100))]
    assert {one.status for one in listed} == {Status.PENDING}
    assert sum(one.attempts for one in listed) == 2  # the third opened the circuit; to park spends no attempt

    # An hour of outage: every five minutes one delivery looks, all others come back unspent.
    for _ in range(12):
        holdfast.clock.advance("5m 1s")
        before = mailer.asked
        await hf.work(once)
        assert mailer.asked - before <= 1
        (state,) = await hf.ops.breakers()
        assert state.state in (CircuitState.OPEN, CircuitState.HALF_OPEN)
    assert Status.FAILED not in holdfast.statuses("mail")

    mailer.up = True
    await holdfast.drain()
    assert holdfast.statuses("mail") == [Status.DELIVERED] * ORDERS
    assert sorted(mailer.sent) == list(range(ORDERS))
    (state,) = await hf.ops.breakers()
    assert state.state is CircuitState.CLOSED
