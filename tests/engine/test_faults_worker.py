"""Faults of workers and leases: processes that are killed, paused, asked to stop, or ended by their handlers."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.programs import lab, shop
from tests.engine.programs.place import Place, Process, postgres_place, sqlite_place, until
from tests.servers.process import has_ended

pytestmark = pytest.mark.long

LEASE = 1.0


@pytest.fixture(params=["sqlite", "postgres18"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with (
        sqlite_place(tmp_path)
        if request.param == "sqlite"
        else postgres_place(request.getfixturevalue(request.param), tmp_path)
    ) as place:
        place.sql(shop.TABLES[1])
        yield place


@pytest.fixture
def postgres(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with postgres_place(request.getfixturevalue("postgres18"), tmp_path) as place:
        place.sql(shop.TABLES[1])
        yield place


def start(place: Place, **options: object) -> Process:
    """A worker of the laboratory that has announced itself."""
    worker = place.worker("lab", **{"lease": LEASE, **options})  # type: ignore[arg-type]
    worker.says("worker started")
    return worker


def delivery(place: Place, columns: str = "status, attempts") -> tuple[object, ...]:
    """The only delivery there is."""
    (row,) = place.sql(f"select {columns} from {{hf}}delivery")
    return row


# Killed at named points: FAULTS 1 to 4.


def test_killed_before_the_claim_commits_nothing_was_claimed(place: Place) -> None:
    worker = start(place, crash="claim.uncommitted")
    place.publish("visit", n=1)
    assert worker.ended() == -signal.SIGKILL
    assert delivery(place) == ("pending", 0)
    start(place)
    place.drained()
    assert delivery(place) == ("delivered", 1)


def test_killed_after_the_claim_before_the_handler_it_is_taken_up_and_the_attempt_counts(place: Place) -> None:
    worker = start(place, crash="claim.committed")
    place.publish("visit", n=1)
    assert worker.ended() == -signal.SIGKILL
    assert delivery(place) == ("in_flight", 1)
    assert place.times("visit 1") == 0
    start(place)
    place.drained()
    assert delivery(place) == ("delivered", 2)
    assert place.sql("select attempt, outcome from {hf}run") == [(1, "lease_expired")]


@pytest.mark.parametrize("point", ["inside", "completed"])
def test_killed_inside_the_handlers_transaction_it_is_rolled_back_and_run_again(place: Place, point: str) -> None:
    worker = start(place)
    place.publish("hold", n=1, at=point)
    place.reached(f"1.{point}")
    worker.kill()
    place.allow(f"1.{point}")
    start(place)
    place.drained()
    assert delivery(place) == ("delivered", 2)
    assert place.sql("select n, attempt from effect") == [(1, 2)]


def test_killed_after_the_handlers_commit_before_the_ack_it_is_not_run_again(place: Place) -> None:
    worker = start(place)
    place.publish("hold", n=1, at="committed")
    place.reached("1.committed")
    worker.kill()
    assert delivery(place, "status, attempts, locked_by") == ("delivered", 1, None)
    place.allow("1.committed")
    start(place)
    place.publish("visit", n=2)
    place.delivered(1, "visit")
    assert place.sql("select n, attempt from effect") == [(1, 1)]


@pytest.mark.parametrize(("point", "runs"), [("settle.uncommitted", 2), ("settle.committed", 1)])
def test_killed_around_the_ack_an_outside_effect_is_repeated_only_if_the_ack_is_not_durable(
    place: Place, point: str, runs: int
) -> None:
    worker = start(place, crash=point)
    id = place.publish("visit", n=1)
    assert worker.ended() == -signal.SIGKILL
    start(place)
    place.drained()
    assert delivery(place) == ("delivered", runs)
    assert place.times(f"visit 1 {id}") == runs == place.times("visit 1")


# Paused past the lease: FAULTS 5 and 6. On SQLite two processes of one family; a transaction that is paused there
# holds the only write lock there is, so that no process can overtake it.


def test_a_worker_that_was_paused_past_its_lease_cannot_finish_what_another_has_finished(place: Place) -> None:
    paused, _ = paused_in_a_run(place, "hold", at="outside")
    place.allow("1.outside")
    place.drained()
    assert place.sql("select n, attempt from effect") == [(1, 2)]
    paused.resumed()
    paused.says('"lease lost"')
    place.publish("visit", n=2)
    place.drained()
    assert delivery_of(place, "hold") == ("delivered", 2)
    assert place.sql("select n, attempt from effect") == [(1, 2)], "the zombie's transaction was rolled back"


def test_the_ack_of_a_worker_that_was_paused_past_its_lease_is_refused(place: Place) -> None:
    paused, id = paused_in_a_run(place, "visit", at="outside")
    place.allow("1.outside")
    place.drained()
    paused.resumed()
    paused.says('"lease lost"')
    assert delivery(place) == ("delivered", 2)
    assert place.times(f"visit 1 {id}") == 2
    assert place.sql("select attempt, outcome from {hf}run") == [(1, "lease_expired")]


def test_paused_inside_the_effects_transaction_before_complete_it_rolls_back(postgres: Place) -> None:
    paused, _ = paused_in_a_run(postgres, "hold", at="inside")
    postgres.allow("1.inside")
    postgres.drained()
    paused.resumed()
    paused.says('"lease lost"')
    assert postgres.sql("select n, attempt from effect") == [(1, 2)]
    assert delivery(postgres) == ("delivered", 2)


def test_paused_after_complete_the_server_ends_its_session_and_the_row_is_free(postgres: Place) -> None:
    paused, _ = paused_in_a_run(postgres, "hold", at="completed")
    postgres.allow("1.completed")
    postgres.drained()
    paused.resumed()
    paused.says('"lease lost"')
    assert postgres.sql("select n, attempt from effect") == [(1, 2)]
    assert delivery(postgres) == ("delivered", 2)


def test_a_worker_that_was_paused_past_its_lease_starts_nothing_that_another_has_taken_over(place: Place) -> None:
    """Its event loop is busy when it is resumed, so the thread that renews the lease is the first to know the time."""
    place.publish_many("hang", [{"n": n, "seconds": 5} for n in (1, 2)])
    paused = place.worker("lab", lease=LEASE, concurrency=2)
    place.noted("started")
    (first,) = (note.split()[1] for _, note in place.notes())
    second = str(3 - int(first))
    place.stop(paused)
    # Each in a process: a loop that is blocked runs one at a time.
    for _ in range(2):
        family = {"HOLDFAST_ENGINE_FAMILY": f"{place.directory / 'holdfast.db'}-engine"} if place.on_sqlite else {}
        start(place, lease=8 * LEASE, concurrency=1, environment=family)
    place.noted(f"hang {second} started")
    paused.resumed()
    paused.says('"worker lease lost"')
    place.drained()
    assert place.times(f"hang {second} started") == 1
    assert place.sql("select attempt, outcome from {hf}run") == [(1, "lease_expired")] * 2


def paused_in_a_run(place: Place, consumer: str, at: str) -> tuple[Process, str]:
    """A worker that is stopped while its handler waits, and the id of its message; another worker takes over.

    The other one has a longer lease: a busy machine may stop it for a second too, and then it would release its claim.
    """
    paused = start(place, lease=2 * LEASE)
    id = place.publish(consumer, n=1, at=at)
    place.reached(f"1.{at}")
    place.stop(paused)
    # On SQLite the second is one of the first one's family.
    family = {"HOLDFAST_ENGINE_FAMILY": f"{place.directory / 'holdfast.db'}-engine"} if place.on_sqlite else {}
    start(place, lease=4 * LEASE, environment=family)
    return paused, id


def delivery_of(place: Place, consumer: str) -> tuple[object, ...]:
    (row,) = place.sql("select status, attempts from {hf}delivery where consumer = ?", consumer)
    return row


# A handler that ends its process: FAULTS 15.


@pytest.mark.parametrize(
    ("place", "how"),
    [
        ("sqlite", "exit"),
        ("postgres18", "segfault"),
        pytest.param("postgres18", "exit", marks=pytest.mark.soak),
        pytest.param("postgres18", "memory", marks=pytest.mark.soak),
    ],
    indirect=["place"],
)
def test_a_handler_that_ends_its_process_is_dead_lettered_alone(place: Place, how: str) -> None:
    bodies: list[dict[str, object]] = [{"n": n, "how": how if n == 50 else None} for n in range(100)]
    # Loaded from its file: the child that runs suspects must find it too.
    app = "lab.py" if how == "segfault" else "lab"

    def run() -> Process:
        return place.worker(app, lease=LEASE, concurrency=100)

    worker = run()
    worker.says("worker started")
    place.publish_many("crowd", bodies)
    assert worker.ended() != 0
    statuses = place.statuses()  # some of the others may have been settled before the process ended
    assert statuses["in_flight"] + statuses.get("delivered", 0) == 100, "nothing failed with it"

    # What ends the process does so again and again: something restarts it, as it would in production.
    def drained() -> bool:
        if not place.processes[-1].alive:
            run()
        return place.undone() == 0

    until(drained, "it does not drain", 60, place.logs)
    assert place.statuses() == {"delivered": 99, "failed": 1}
    (row,) = place.sql("select attempts, error_type from {hf}delivery where status = 'failed'")
    assert row == (lab.BUDGET, "holdfast.LeaseExpired")
    assert place.times("guilty") == lab.BUDGET
    # Twice together with the guilty one; after that each runs alone.
    assert place.one("select max(attempts) from {hf}delivery where status = 'delivered'") <= 3


# Asked to stop: FAULTS 14.


def test_sigterm_ends_an_idle_worker_at_once(place: Place) -> None:
    worker = start(place)
    worker.signal(signal.SIGTERM)
    assert worker.ended(10) == 0
    assert place.sql("select id from {hf}worker") == []


def test_sigterm_lets_short_handlers_finish(place: Place) -> None:
    worker = start(place)
    place.publish("nap", n=1, seconds=1)
    place.publish("doze", n=2, seconds=1)
    place.noted("nap 1 started")
    place.noted("doze 2 started")
    worker.signal(signal.SIGTERM)
    assert worker.ended(15) == 0
    assert place.statuses() == {"delivered": 2}
    assert place.sql("select attempts from {hf}delivery") == [(1,), (1,)]


@pytest.mark.parametrize("kind", ["nap", "doze"])
def test_sigterm_cuts_off_what_outlasts_the_grace_and_spends_no_attempt(place: Place, kind: str) -> None:
    worker = start(place, grace=2, concurrency=2)
    place.publish_many(kind, [{"n": n, "seconds": 60} for n in range(6)])
    until(lambda: place.times("started") == 2, "not two at once", 30, place.logs)
    worker.signal(signal.SIGTERM)
    assert worker.ended(20) == 0
    assert place.statuses() == {"pending": 6}
    assert {row[0] for row in place.sql("select attempts from {hf}delivery")} == {0}
    held = place.sql("select holds, count(*) from {hf}delivery group by holds order by holds")
    assert held == [(0, 4), (1, 2)], "only what was started and cut off is a hold"
    assert place.sql("select id from {hf}worker") == []


def test_a_second_sigterm_does_not_wait_for_handlers(place: Place) -> None:
    worker = start(place, grace=60)
    place.publish("nap", n=1, seconds=60)
    place.noted("nap 1 started")
    worker.signal(signal.SIGTERM)
    worker.signal(signal.SIGTERM)
    assert worker.ended(15) == 0
    assert delivery(place) == ("pending", 0)


# Families: `--processes`.


def test_sigterm_ends_a_family_and_a_killed_child_is_replaced(place: Place) -> None:
    family = place.worker("lab", lease=LEASE, grace=2, more=("--processes", "2"))
    until(lambda: len(place.sql("select id from {hf}worker")) == 2, "not two of them", 30, place.logs)
    first = family.children()
    first[0].kill()
    until(lambda: len(set(family.children()) - set(first)) == 1, "not replaced", 30, place.logs)
    place.publish("nap", n=1, seconds=60)
    place.noted("nap 1 started")
    family.signal(signal.SIGTERM)
    assert family.ended(20) == 0
    assert delivery(place) == ("pending", 0)
    assert all(has_ended(child) for child in first)


def test_the_children_of_a_killed_supervisor_end_too(place: Place) -> None:
    family = place.worker("lab", lease=LEASE, grace=2, more=("--processes", "2"))
    until(lambda: len(place.sql("select id from {hf}worker")) == 2, "not two of them", 30, place.logs)
    children = family.children()
    family.kill()
    until(lambda: all(has_ended(child) for child in children), "orphans continue", 30, place.logs)
    assert place.sql("select id from {hf}worker") == []
    start(place)


def test_a_restart_under_the_same_host_name_is_a_new_instance_and_recovers_orphans(place: Place) -> None:
    worker = start(place)
    place.publish("nap", n=1, seconds=1.5)
    place.noted("nap 1 started")
    worker.kill()
    start(place)
    place.drained()
    dead, living = worker.pid, place.processes[-1].pid
    assert {row[0].split("/")[1] for row in place.sql("select id from {hf}worker")} == {str(dead), str(living)}
    assert delivery(place) == ("delivered", 2)
