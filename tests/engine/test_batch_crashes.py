"""Batches whose worker dies between any two steps: no item is lost, and none is completed twice. Through PgBouncer too."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.programs import heap, shop
from tests.engine.programs.place import Place, Process, postgres_place, sqlite_place, until
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]

ITEMS = 90
POINTS = ("claim.committed", "settle.uncommitted", "settle.committed")
EFFECT_POINTS = ("effect.uncommitted", "effect.completed", "effect.committed")


@pytest.fixture(params=["sqlite", "postgres18"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        with sqlite_place(tmp_path) as place:
            yield place
    else:
        with postgres_place(request.getfixturevalue("postgres18"), tmp_path) as place:
            yield place


def start(place: Place, crash: str = "") -> Process:
    family = {"HOLDFAST_ENGINE_FAMILY": f"{place.directory / 'holdfast.db'}-engine"} if place.on_sqlite else {}
    return place.worker("heap", lease=1, concurrency=4, crash=crash, environment=family)


def publish(place: Place, type: str) -> None:
    place.publish_many(type, [{"n": n} for n in range(ITEMS)])


def test_every_item_is_sent_although_workers_die_at_every_point(place: Place) -> None:
    first = start(place)
    first.says("worker started")
    first.kill()
    publish(place, "sent")
    for point in POINTS:
        killed = start(place, point)
        killed.ended()
        assert (place.markers / f"crashed.{point}").exists(), killed.log
        publish(place, "sent")
    start(place)
    place.drained(60)
    assert place.statuses() == {"delivered": ITEMS * (len(POINTS) + 1)}
    assert all(place.times(f"sent {n}.") >= len(POINTS) + 1 for n in range(ITEMS))


def test_an_effect_that_is_completed_with_its_batch_is_applied_once(place: Place) -> None:
    place.sql(shop.TABLES[1])
    first = start(place)
    first.says("worker started")
    first.kill()
    publish(place, "stored")
    for point in EFFECT_POINTS:
        killed = start(place, point)
        killed.ended()
        assert (place.markers / f"crashed.{point}").exists(), killed.log
    start(place)
    place.drained(60)
    assert place.statuses() == {"delivered": ITEMS}
    assert place.one("select count(*) from effect") == ITEMS
    assert place.one("select count(distinct n) from effect") == ITEMS


def test_an_item_that_ends_the_process_dies_alone(place: Place) -> None:
    worker = start(place)
    worker.says("worker started")
    place.publish_many("mixed", [{"n": n, **({"kill": True} if n == 7 else {})} for n in range(heap.SIZE)])

    def runs() -> bool:
        if not place.processes[-1].alive:
            start(place)
        return not place.undone()

    until(runs, "it does not drain", 60, place.logs)
    assert place.statuses() == {"delivered": heap.SIZE - 1, "failed": 1}
    assert place.times("mixed 7 of 1.") == 1


def test_the_newest_of_every_key_runs_last_although_workers_die(place: Place) -> None:
    survivor = start(place)
    survivor.says("worker started")
    keys, number = 5, 0
    for point in ("claim.committed", "effect.started", "settle.uncommitted"):
        killed = start(place, point)
        while killed.alive and number < 3000:
            place.publish("edited", key=number % keys, n=number)
            number += 1
            time.sleep(0.005)
        killed.kill()
    place.drained(60)
    events = [note.split() for _, note in sorted(place.notes())]
    for key in range(keys):
        newest = max(n for n in range(number) if n % keys == key)
        ended = [int(n) for what, of, n in events if (what, of) == ("end", str(key))]
        assert ended[-1] == newest, "the newest ran, and nothing older after it"
    assert place.one("select count(*) from {hf}delivery where status = 'failed' and discarded_at is null") == 0
    assert place.one("select count(*) from {hf}delivery where status = 'delivered'") < number / 2


def test_batches_work_through_a_pooler_in_transaction_mode(postgres18: PostgresServer, tmp_path: Path) -> None:
    with (
        postgres_place(postgres18, tmp_path) as place,
        PgBouncer(postgres18, settings={"default_pool_size": 4}) as pooler,
    ):
        place.sql(shop.TABLES[1])
        dsn = pooler.dsn(place.dsn.rpartition("/")[2])
        worker = place.worker("heap", dsn=dsn)
        worker.says("worker started")
        publish(place, "stored")
        publish(place, "sent")
        for n in range(20):
            place.publish("edited", key=1, n=n)
        place.drained(30)
        assert place.times("end 1 ") == 1
        assert place.statuses() == {"delivered": 2 * ITEMS + 1, "failed": 19}
        assert place.one("select count(*) from effect") == ITEMS
