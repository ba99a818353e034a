"""Deploys: generations side by side, and workers that lack a handler. FAULTS 13 and 17b."""

from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import pytest

from holdfast import Holdfast
from tests.engine.programs.place import Place, Process, postgres_place, sqlite_place, until

pytestmark = pytest.mark.long

LEASE = 1.0


@pytest.fixture(params=["sqlite", "postgres18"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with (
        sqlite_place(tmp_path)
        if request.param == "sqlite"
        else postgres_place(request.getfixturevalue(request.param), tmp_path)
    ) as place:
        yield place


def start(place: Place, generation: int, *, first: bool = True) -> Process:
    """A worker of one deploy; on SQLite a later one belongs to the family of the first."""
    family = (
        {} if first or not place.on_sqlite else {"HOLDFAST_ENGINE_FAMILY": f"{place.directory / 'holdfast.db'}-engine"}
    )
    worker = place.worker(
        "lab",
        lease=LEASE,
        grace=1,
        environment={**family, "HOLDFAST_TEST_NAME": f"generation {generation}"},
        more=("--generation", str(generation)),
    )
    worker.says("worker started")
    return worker


def publish(place: Place, generation: int, numbers: range) -> None:
    app = Holdfast(place.dsn, generation=generation)
    try:
        app.sync.publish_many([("visit", {"n": n}) for n in numbers], conn=None)
    finally:
        app.store.close_sync()


def by(place: Place, generation: int) -> int:
    return place.times(f"by generation {generation}")


def test_work_of_the_old_generation_is_for_its_own_workers_while_one_lives(place: Place) -> None:
    old = start(place, 1)
    new = start(place, 2, first=False)
    publish(place, 1, range(30))
    publish(place, 2, range(30, 60))
    place.drained()
    assert (by(place, 1), by(place, 2)) == (30, 30)
    # The deploy continues: the last worker of the old generation ends, in good order or not.
    old.signal(SIGTERM)
    assert old.ended() == 0
    publish(place, 1, range(60, 90))
    place.drained()
    assert (by(place, 1), by(place, 2)) == (30, 60)
    assert new.alive


def test_work_of_an_old_generation_whose_workers_were_killed_is_taken_over(place: Place) -> None:
    old = start(place, 1)
    new = start(place, 2, first=False)
    publish(place, 1, range(1))
    place.drained()
    old.kill()
    publish(place, 1, range(1, 20))
    place.drained()
    assert (by(place, 1), by(place, 2)) == (1, 19)
    assert new.alive


def test_an_old_worker_does_not_touch_the_work_of_a_newer_generation(place: Place) -> None:
    start(place, 1)
    publish(place, 2, range(5))
    publish(place, 1, range(5, 10))
    place.delivered(5, "visit")
    assert place.statuses() == {"delivered": 5, "pending": 5}
    assert by(place, 1) == 5
    start(place, 2, first=False)
    place.drained()
    assert (by(place, 1), by(place, 2)) == (5, 5)


def test_work_without_a_handler_here_is_left_for_others(place: Place) -> None:
    place.app().sync.publish("visit", {"n": 1}, conn=None)
    shop = place.worker("shop", lease=LEASE)
    shop.says("worker started")
    lab = start_second(place)
    publish(place, 0, range(2, 10))
    until(lambda: place.times("visit") == 9, "not all were run", 30, place.logs)
    place.drained()
    assert {row[0] for row in place.sql("select attempts from {hf}delivery")} == {1}
    assert shop.alive
    assert lab.alive


def start_second(place: Place) -> Process:
    return start(place, 0, first=False)
