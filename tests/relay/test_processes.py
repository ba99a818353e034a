"""Relays in processes that are killed, to a real broker: nothing is lost, and what comes twice has the same id."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import orjson
import pytest
from redis import Redis

from tests.engine.programs.place import Place, Process, postgres_place, sqlite_place, until
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.long

_streams = count(1)


class Shop:
    """A database with orders, a stream that they go to, and the workers between them."""

    def __init__(self, place: Place, server: RedisServer) -> None:
        self.place, self.stream = place, f"orders-{next(_streams)}"
        self._url = server.url
        self._redis: Any = Redis.from_url(server.url)
        self._numbers = count()
        self.published: list[str] = []

    def worker(self, crash: str = "") -> Process:
        return self.place.program(
            *("holdfast", "worker", "--app", "tests.relay.programs.shop:hf", "--lease", "2s", "--grace", "5s"),
            environment={
                "HOLDFAST_REDIS": self._url,
                "HOLDFAST_TEST_STREAM": self.stream,
                "HOLDFAST_TEST_CRASH": crash,
            },
        )

    def publish(self, number: int) -> None:
        self.published += [self.place.publish("order.placed", n=next(self._numbers)) for _ in range(number)]

    @property
    def arrived(self) -> list[str]:
        """The ids in the stream, in its order."""
        return [str(orjson.loads(fields[b"body"])["id"]) for _, fields in self._redis.xrange(self.stream)]

    @property
    def owner(self) -> int:
        """The process that relays now."""
        rows = self.place.sql("select owner from {hf}position where owner is not null")
        return int(rows[0][0].split("/")[1]) if rows else 0

    @property
    def marked(self) -> int:
        rows = self.place.sql("select passed from {hf}position")
        return int(rows[0][0]) if rows else 0

    def complete(self) -> None:
        """Waits until everything published has arrived; the first time in order, and never under another id."""
        until(lambda: set(self.arrived) >= set(self.published), "events are missing", 30, self.place.logs)
        assert list(dict.fromkeys(self.arrived)) == self.published

    def close(self) -> None:
        self._redis.close()


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.soak), "postgres18"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, redis: RedisServer) -> Iterator[Shop]:
    """On each of the databases."""
    server = None if request.param == "sqlite" else request.getfixturevalue(request.param)
    with _shop(server, tmp_path, redis) as shop:
        yield shop


@contextmanager
def _shop(server: PostgresServer | None, directory: Path, redis: RedisServer) -> Iterator[Shop]:
    with sqlite_place(directory) if server is None else postgres_place(server, directory) as place:
        shop = Shop(place, redis)
        yield shop
        shop.close()


def test_killed_between_sending_and_marking_the_next_one_sends_the_same_ids_again(shop: Shop) -> None:
    shop.publish(3)
    assert shop.worker(crash="mark.uncommitted").ended() < 0
    assert shop.arrived == shop.published
    assert shop.marked == 0
    shop.publish(2)
    shop.worker()
    shop.complete()
    assert len(shop.arrived) == 8, "three of them twice"


@pytest.mark.soak
def test_of_two_processes_one_relays_and_when_it_is_killed_the_other_takes_over(
    postgres18: PostgresServer, tmp_path: Path, redis: RedisServer
) -> None:
    with _shop(postgres18, tmp_path, redis) as shop:
        workers = {worker.pid: worker for worker in (shop.worker(), shop.worker())}
        until(lambda: shop.owner != 0, "no process relays", detail=shop.place.logs)
        shop.publish(40)
        killed = workers.pop(shop.owner)
        killed.kill()
        shop.publish(40)
        shop.complete()
        until(lambda: shop.owner in workers, "no process took over", detail=shop.place.logs)


def test_a_relay_that_stood_still_for_longer_than_its_lease_moves_nothing(
    postgres18: PostgresServer, tmp_path: Path, redis: RedisServer
) -> None:
    with _shop(postgres18, tmp_path, redis) as shop:
        sleeper = shop.worker()
        until(lambda: shop.owner == sleeper.pid, "no process relays", detail=shop.place.logs)
        sleeper.stopped()
        other = shop.worker()
        shop.publish(20)
        shop.complete()
        until(lambda: shop.marked == 20, "it was not marked", detail=shop.place.logs)
        sleeper.resumed()
        sleeper.says("relay lease lost")
        assert (shop.marked, shop.owner) == (20, other.pid)
        shop.publish(5)
        shop.complete()
