"""Crash tests against real processes: nothing accepted is lost, nothing is applied twice, nothing needs a restart.

While a driver publishes at least five thousand messages, workers die at random moments and at every named point between
two durable steps, one is stopped for longer than its lease, publishers die around their commits, PostgreSQL's sessions are
cut and its server is killed and started again. Then the faults end, those that lived through them drain what is left, and the oracle is asked.
`make test` has a short run on SQLite with fewer messages and four points, and kills workers on PostgreSQL in the tests of workflows.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from signal import SIGKILL

import pytest

from tests.engine.oracle import Oracle
from tests.engine.programs import crash, shop
from tests.engine.programs.chaos import Chaos, Points
from tests.engine.programs.place import Place, Process, postgres_place, sqlite_place, until
from tests.servers.postgres import PostgresServer

FEW = 500
MESSAGES = 5_000
MANY = 100_000
SOME = ("claim.committed", "effect.uncommitted", "effect.committed", "settle.uncommitted")


@pytest.fixture
def seed() -> int:
    """Printed when the test fails; return it here to have the same chances again."""
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    return seed


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that may be killed: no other test uses it, and what it accepted is on disk."""
    with PostgresServer(18, durable=True) as server:
        yield server


@pytest.mark.timeout(240)
def test_a_short_run_on_sqlite_loses_and_doubles_nothing(tmp_path: Path, seed: int) -> None:
    with sqlite_place(tmp_path) as place:
        _crash_sqlite(place, seed, FEW, wanted=SOME)


@pytest.mark.long
@pytest.mark.timeout(450)
def test_nothing_is_lost_or_doubled_on_postgres_while_workers_sessions_and_the_server_die(
    server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    with postgres_place(server, tmp_path) as place:
        _crash_postgres(place, server, seed, MESSAGES, restarts=2)


@pytest.mark.long
@pytest.mark.timeout(450)
def test_nothing_is_lost_or_doubled_on_sqlite_while_workers_die(tmp_path: Path, seed: int) -> None:
    with sqlite_place(tmp_path) as place:
        _crash_sqlite(place, seed, MESSAGES)


@pytest.mark.soak
def test_nothing_is_lost_or_doubled_on_postgres_for_a_long_time(
    server: PostgresServer, tmp_path: Path, seed: int
) -> None:
    with postgres_place(server, tmp_path) as place:
        _crash_postgres(place, server, seed, MANY, restarts=100)


@pytest.mark.soak
def test_nothing_is_lost_or_doubled_on_sqlite_for_a_long_time(tmp_path: Path, seed: int) -> None:
    with sqlite_place(tmp_path) as place:
        _crash_sqlite(place, seed, MANY)


def _crash_postgres(
    place: Place,
    server: PostgresServer,
    seed: int,
    messages: int,
    *,
    restarts: int,
) -> None:
    def start(point: str) -> Process:
        return place.worker("shop", lease=2, crash=point)

    points = Points(place, seed)
    survivor, sleeper = start(""), start("")
    with Chaos(place, seed) as chaos:
        for _ in range(2):
            chaos.start(lambda chance: chaos.kill_workers(chance, start, points))
        chaos.start(lambda chance: chaos.freeze(chance, sleeper, 2))
        chaos.start(chaos.cut_sessions)
        chaos.start(lambda chance: chaos.restart_server(chance, server, restarts))
        _publish(place, seed, messages, points)
    _heals(place, survivor, 60 + messages / 100)


def _crash_sqlite(place: Place, seed: int, messages: int, *, wanted: Sequence[str] = crash.WORKER_POINTS) -> None:
    def start(point: str) -> Process:
        # Only one engine family may work here; this one belongs to it, as a child would.
        family = {"HOLDFAST_ENGINE_FAMILY": f"{place.directory / 'holdfast.db'}-engine"}
        return place.worker("shop", lease=1, concurrency=4, crash=point, environment=family)

    points = Points(place, seed, wanted)
    survivor = place.worker("shop", lease=1, concurrency=4, more=("--processes", "2"))
    with Chaos(place, seed) as chaos:
        chaos.start(lambda chance: chaos.kill_children(chance, survivor))
        chaos.start(lambda chance: chaos.kill_workers(chance, start, points))
        _publish(place, seed, messages, points)
    _heals(place, survivor, 60 + messages / 100)


def _publish(place: Place, seed: int, messages: int, points: Points) -> None:
    """At least so many, and more for as long as a crash point was not hit: an idle worker comes to few of them."""
    for statement in shop.TABLES:
        place.sql(statement)
    driver = _publisher(place, 0, messages, seed)
    patience = 90 + messages / 50
    for number, point in enumerate(crash.PUBLISHER_POINTS, start=1):
        killed = _publisher(place, number * 10**6, 250, seed + number, f"{point}@{random.Random(seed).randint(1, 4)}")
        assert killed.ended(patience) == -SIGKILL, killed.log
    until((place.markers / "published").exists, "the driver is not done", patience, place.logs)
    problem = "workers did not die at every point"
    until(lambda: not points.missing(), problem, 240, lambda: f"{points.missing()}\n{place.logs()}")
    place.allow("enough")
    assert driver.ended() == 0, driver.log


def _publisher(place: Place, first: int, number: int, seed: int, point: str = "") -> Process:
    arguments = (str(first), str(number), str(seed), "0.3")
    environment = {"HOLDFAST_TEST_CRASH": point}
    return place.program("tests.engine.programs.publisher", *arguments, environment=environment)


def _heals(place: Place, survivor: Process, patience: float) -> None:
    """The faults are gone: who lived through them drains what is left, with no one's help, and the oracle holds."""
    place.drained(patience)
    assert survivor.alive, survivor.log
    Oracle(place).everything()
