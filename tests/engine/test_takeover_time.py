"""Promise 5: what a killed worker held is taken up by a survivor within lease plus poll, whenever it is killed."""

import random
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import psycopg
import pytest

from tests.engine.programs import shop
from tests.engine.programs.place import Place, postgres_place, until
from tests.engine.programs.victim import nursery
from tests.servers.postgres import PostgresServer

pytestmark = pytest.mark.long

LEASE, POLL, SLACK = 2.0, 0.2, 1.0
NAP = 3 * LEASE


@pytest.fixture
def place(postgres18: PostgresServer, tmp_path: Path) -> Iterator[Place]:
    with postgres_place(postgres18, tmp_path) as place:
        place.sql(shop.TABLES[1])
        yield place


class Killing:
    """Starts workers next to a survivor, kills each while it holds work, and measures when that work is taken over."""

    def __init__(self, place: Place, seed: int) -> None:
        self._place, self._random = place, random.Random(seed)
        self._start = nursery(place.directory)

    def once(self, name: int) -> float:
        """Kills one worker at a random moment; how long it took until a survivor had taken over all that it held."""
        victim = self._start(self._place.dsn, LEASE)
        with psycopg.connect(self._place.dsn, autocommit=True) as db:
            mine = f"{socket.gethostname().split('.')[0][:30]}/{victim.pid}/%"
            self._wait(db, "select 1 from holdfast.worker where id like %s", mine)
            self._give_work(db, mine, name)
            time.sleep(self._random.uniform(0, LEASE))
            victim.kill()
            killed = time.monotonic()
            victim.join()
            self._wait(db, "select 1 where not exists (select 1 from holdfast.delivery where locked_by like %s)", mine)
            took = time.monotonic() - killed
            # Many are killed here while they hold the same work: none of it is to become a suspect.
            db.execute("update holdfast.delivery set expiries = 0 where expiries > 0")
        return took

    def _give_work(self, db: psycopg.Connection, mine: str, name: int) -> None:
        """Publishes until the victim has something: the others may be quicker."""
        number = count()
        while not db.execute("select 1 from holdfast.delivery where locked_by like %s", (mine,)).fetchall():
            self._place.publish("nap", n=f"{name}.{next(number)}", seconds=NAP)
            time.sleep(0.05)

    def _wait(self, db: psycopg.Connection, query: str, value: str) -> None:
        until(lambda: bool(db.execute(query.encode(), (value,)).fetchall()), query, 30)


def taken_up(place: Place, kills: int, at_once: int) -> list[float]:
    """The times until work was taken up again, in seconds after the kill."""
    seed = random.randrange(10**6)
    place.publish("visit", n=0)
    survivor = place.worker("lab", lease=LEASE, concurrency=200)
    survivor.says("worker started")
    place.drained()
    time.sleep(LEASE / 2)  # by then it may call others dead
    killing = Killing(place, seed)
    with ThreadPoolExecutor(at_once) as pool:
        times = sorted(pool.map(killing.once, range(kills)))
    print(f"seed {seed}: {kills} kills, median {times[len(times) // 2]:.2f} s, longest {times[-1]:.2f} s")
    assert survivor.alive
    return times


def test_what_a_killed_worker_held_is_taken_up_within_lease_plus_poll(place: Place) -> None:
    assert max(taken_up(place, 4, 4)) < LEASE + POLL + SLACK


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_of_200_workers_killed_at_random_moments_none_is_taken_up_late(place: Place) -> None:
    assert max(taken_up(place, 200, 6)) < LEASE + POLL + SLACK


def test_a_host_lost_inside_an_open_completed_transaction_is_taken_up_within_a_lease(place: Place) -> None:
    """FAULTS 61: nothing closes its connections, so that the server alone can end its session."""
    lost = place.worker("lab", lease=LEASE)
    lost.says("worker started")
    place.publish("hold", n=1, at="completed")
    place.reached("1.completed")
    survivor = place.worker("lab", lease=LEASE)
    survivor.says("worker started")
    time.sleep(LEASE / 2)
    stopped = time.monotonic()
    lost.stopped()
    place.allow("1.completed")
    place.drained()
    took = time.monotonic() - stopped
    print(f"done {took:.2f} s after the host was lost")
    assert took < LEASE + POLL + SLACK
    assert place.sql("select n, attempt from effect") == [(1, 2)]


def test_a_worker_that_starts_after_the_crash_takes_over_half_a_lease_after_its_start(place: Place) -> None:
    """Or when the lease expires, if that is later."""
    killed = place.worker("lab", lease=4)
    killed.says("worker started")
    place.publish("nap", n=1, seconds=0.5)
    place.noted("nap 1 started")
    killed.kill()
    at = time.clock_gettime(time.CLOCK_MONOTONIC)
    place.worker("lab", lease=4).says("worker started")
    announced = time.clock_gettime(time.CLOCK_MONOTONIC)
    until(lambda: place.times("nap 1 started") == 2, "not taken up", 20, place.logs)
    again = [when for when, note in place.notes() if note == "nap 1 started"][1]
    print(f"started again {again - at:.2f} s after the kill, {again - announced:.2f} s after its start")
    assert again < max(at + 4, announced + 2) + POLL + SLACK
