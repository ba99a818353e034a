"""A killed process leaves the live result complete, and the next one applies nothing twice."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Refused
from tests.engine.programs.place import Place, Process, postgres_place, sqlite_place
from tests.projections import ledger
from tests.projections.ledger import expected, order, result
from tests.support.worker import drain

pytestmark = pytest.mark.long

BEFORE, AFTER = 20, 30
POINTS = ("rebuild.completed@10", "rebuild.committed@10", "swap.uncommitted")
ANYWHERE = (
    *("reset.uncommitted", "swap.started", "swap.uncommitted"),
    *(f"rebuild.{step}@{n}" for step in ("applied", "completed", "committed") for n in (3, 40, 90)),
)


SLOWER_ON_SQLITE = pytest.mark.parametrize(
    "place", [pytest.param("sqlite", marks=pytest.mark.soak), "postgres18"], indirect=True
)


@pytest.fixture(params=["sqlite", "postgres18"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A separate database, for processes that are killed."""
    if request.param == "sqlite":
        with sqlite_place(tmp_path) as made:
            yield made
        return
    with postgres_place(request.getfixturevalue(request.param), tmp_path) as made:
        yield made


def start(place: Place, module: str, *arguments: str, crash: str) -> Process:
    return place.program(module, *arguments, environment={"HOLDFAST_TEST_CRASH": crash})


def lapse_rebuild(place: Place) -> None:
    """The leases of a dead rebuild run out: stored times are moved back."""
    an_hour = "3600000" if place.on_sqlite else "interval '1 hour'"
    place.sql(f"update {{hf}}position set lease_until = lease_until - {an_hour}")
    place.sql(f"update {{hf}}projector set held_until = held_until - {an_hour}")


def lapse(place: Place) -> None:
    """The leases of all the dead run out."""
    an_hour = "3600000" if place.on_sqlite else "interval '1 hour'"
    lapse_rebuild(place)
    place.sql(f"update {{hf}}worker set alive_until = alive_until - {an_hour}")
    place.sql(f"update {{hf}}delivery set lease_until = lease_until - {an_hour}")


async def test_a_rebuild_killed_at_any_point_leaves_the_live_result_and_can_be_run_again(place: Place) -> None:
    hf = ledger.build(place.dsn)
    ledger.tables(hf)
    await hf.publish_many([order(n) for n in range(BEFORE)], conn=None)
    await drain(hf, concurrency=3)
    live = expected([order(n) for n in range(BEFORE)])
    await hf.publish_many([order(n) for n in range(BEFORE, AFTER)], conn=None)

    for point in POINTS:
        more = ["--resume"] if "committed@" in point else []
        killed = start(place, "tests.projections.rebuilding", "totals", *more, crash=point)
        assert killed.ended() == -9, killed.log
        assert result(hf.dsn, "totals") == live["totals"]
        with pytest.raises(Refused, match="already being rebuilt"):
            await hf.projectors.rebuild("totals", actor="grace")
        lapse(place)

    (state,) = [one for one in await hf.ops.projectors() if one.name == "totals"]
    assert state.rebuild is not None
    assert (state.rebuild.state, state.rebuild.alive, state.held) == ("running", False, False)
    await drain(hf, concurrency=3)
    both = expected([order(n) for n in range(AFTER)])
    assert result(hf.dsn, "totals") == both["totals"]

    (done,) = await hf.projectors.rebuild("totals", actor="ada", resume=True)
    assert (done.applied, done.done) == (AFTER, 0)
    assert result(hf.dsn, "totals") == both["totals"]
    await hf.close()


async def test_a_rebuild_in_place_that_was_killed_keeps_its_projector_until_it_is_done(place: Place) -> None:
    hf = ledger.build(place.dsn)
    ledger.tables(hf)
    await hf.publish_many([order(n) for n in range(BEFORE)], conn=None)
    await drain(hf, concurrency=3)
    killed = start(place, "tests.projections.rebuilding", "counts", crash="rebuild.in_place@15")
    assert killed.ended() == -9, killed.log
    lapse(place)
    await hf.publish_many([order(n) for n in range(BEFORE, AFTER)], conn=None)
    await drain(hf, concurrency=3)
    half = expected([order(n) for n in range(14)])
    assert result(hf.dsn, "counts") == half["counts"], "nothing may be added to what is half built"
    (finding,) = [one for one in await hf.ops.doctor() if one.check == "projectors"]
    assert finding.level == "fail"
    assert "counts was interrupted after 14 events; its result is incomplete" in finding.message

    await hf.projectors.rebuild("counts", actor="ada", resume=True)
    await drain(hf, concurrency=3)
    assert result(hf.dsn, "counts") == expected([order(n) for n in range(AFTER)])["counts"]
    await hf.close()


@SLOWER_ON_SQLITE
async def test_a_projector_killed_before_its_checkpoint_has_applied_nothing(place: Place) -> None:
    hf = ledger.build(place.dsn)
    ledger.tables(hf)
    await hf.publish_many([order(n) for n in range(BEFORE)], conn=None)
    worker = ("worker", "--app", "tests.projections.ledger:hf", "--concurrency", "1")
    killed = start(place, "holdfast", *worker, crash="live.completed@5")
    assert killed.ended() == -9, killed.log
    assert sum(row[1] for row in result(hf.dsn, "totals")) == 4
    lapse(place)
    await drain(hf, concurrency=3)
    wanted: dict[str, Any] = expected([order(n) for n in range(BEFORE)])
    assert {name: result(hf.dsn, name) for name in wanted} == wanted
    await hf.close()


@pytest.mark.soak
async def test_rebuilds_that_are_killed_again_and_again_under_traffic_lose_and_double_nothing(place: Place) -> None:
    """Workers that are killed, too, and a last rebuild that is not: every event is in the result once."""
    hf = ledger.build(place.dsn)
    ledger.tables(hf)
    await hf.publish_many([order(n) for n in range(100)], conn=None)
    published, stop = 100, asyncio.Event()
    worker = ("worker", "--app", "tests.projections.ledger:hf", "--concurrency", "3", "--lease", "2s")

    async def traffic() -> None:
        nonlocal published
        while not stop.is_set():
            await hf.publish_many([order(n) for n in range(published, published + 3)], conn=None)
            published += 3
            await asyncio.sleep(0.05)

    publishing = asyncio.create_task(traffic())
    working = start(place, "holdfast", *worker, crash="")
    chance = random.Random(published)
    ends = Counter[int]()
    for round in range(16):
        point = chance.choice([*ANYWHERE, "", ""])
        rebuilding = start(place, "tests.projections.rebuilding", chance.choice(["totals", "counts"]), crash=point)
        ends[await asyncio.to_thread(rebuilding.ended, 90)] += 1
        if round % 4 == 3:
            await asyncio.to_thread(working.kill)
            lapse(place)
            working = start(place, "holdfast", *worker, crash="")
        else:
            lapse_rebuild(place)
    assert ends[-9] > 3
    assert ends[0] > 1
    await hf.projectors.rebuild("totals", "counts", actor="ada")
    stop.set()
    await publishing
    await asyncio.to_thread(place.drained, 90)
    wanted = expected([order(n) for n in range(published)])
    assert {name: result(hf.dsn, name) for name in wanted} == wanted
    await hf.close()
