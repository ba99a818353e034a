"""SQLite between processes: who may publish, who may work, and what a kill leaves. FAULTS 17 and 54."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from signal import SIGKILL, SIGTERM

import pytest

from tests.engine.oracle import Oracle
from tests.engine.programs import crash, shop
from tests.engine.programs.place import Place, postgres_place, sqlite_place

pytestmark = pytest.mark.long


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with sqlite_place(tmp_path) as place:
        for statement in shop.TABLES:
            place.sql(statement)
        yield place


def test_any_process_publishes_while_an_engine_runs(place: Place) -> None:
    worker = place.worker("shop", lease=2)
    worker.says("worker started")
    place.allow("enough")
    publishers = [place.program("tests.engine.programs.publisher", str(n), "250", "7") for n in (0, 1000)]
    assert [publisher.ended() for publisher in publishers] == [0, 0], place.logs()
    place.drained()
    Oracle(place).everything()


def test_a_second_engine_is_refused_with_a_clear_message(place: Place) -> None:
    first = place.worker("lab")
    first.says("worker started")
    second = place.worker("lab")
    assert second.ended() == 4
    assert f"process {first.pid}" in second.log
    assert "Traceback" not in second.log
    assert first.alive
    first.signal(SIGTERM)
    assert first.ended() == 0
    third = place.worker("lab")
    third.says("worker started")


def test_the_lock_of_an_engine_that_was_killed_is_free(place: Place) -> None:
    first = place.worker("lab")
    first.says("worker started")
    first.kill()
    place.worker("lab").says("worker started")


@pytest.mark.parametrize("point", crash.PUBLISHER_POINTS)
def test_a_publisher_killed_around_its_commit_leaves_all_or_nothing(place: Place, point: str) -> None:
    publisher = place.program(
        "tests.engine.programs.publisher", "0", "250", "11", environment={"HOLDFAST_TEST_CRASH": f"{point}@3"}
    )
    assert publisher.ended() == -SIGKILL
    Oracle(place).nothing_accepted_is_absent_and_nothing_rolled_back_is_there()
    with closing(sqlite3.connect(place.directory / "holdfast.db")) as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("store", ["sqlite", "postgres18"])
def test_a_child_that_was_forked_after_connections_were_opened_has_its_own(
    store: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """A web server loads the app, publishes once, and forks its workers."""
    with (
        sqlite_place(tmp_path) if store == "sqlite" else postgres_place(request.getfixturevalue(store), tmp_path)
    ) as place:
        program = place.program("tests.engine.programs.forking", "3")
        assert program.ended() == 0, program.log
        rows = place.sql("select payload from {hf}message")
        assert len(rows) == 1 + 3 * 20 + 20, program.log
