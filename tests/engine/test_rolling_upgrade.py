"""A rolling upgrade: the code of the last commit before the newest migration works next to this one.

Its workers and publishers run before, during and after the migration; processes of both are killed. The older code
comes from the history of this repository.
"""

import os
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from signal import SIGTERM

import pytest

from tests.engine.programs.place import ROOT, Place, Process, until
from tests.servers.postgres import PostgresServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(240)]

LEASE = 2.0
APP = Path(__file__).with_name("programs") / "rolling.py"
MIGRATIONS = "src/holdfast/stores/postgres/migrations"


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", ROOT, *arguments], check=True, capture_output=True).stdout


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the last commit before the newest migration."""
    newest = max(file.name for file in (ROOT / MIGRATIONS).glob("0*.sql"))
    try:
        added = git("log", "--format=%H", "--diff-filter=A", "-1", "--", f"{MIGRATIONS}/{newest}").decode().strip()
        commit = git("rev-parse", "--verify", "--quiet", f"{added}^" if added else "HEAD").decode().strip()
        archive = git("archive", commit, "src")
    except (OSError, subprocess.CalledProcessError):
        pytest.skip(f"the history of this repository does not reach back to the commit before migration {newest}")
    directory = tmp_path_factory.mktemp("older")
    subprocess.run(["tar", "-x", "-C", directory], input=archive, check=True)
    return directory / "src"


@pytest.fixture(params=["sqlite", "postgres16", "postgres18"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """A database without tables of Holdfast."""
    server: PostgresServer | None = None
    dsn = f"sqlite:///{tmp_path / 'holdfast.db'}"
    if request.param != "sqlite":
        server = request.getfixturevalue(request.param)
        assert server is not None
        dsn = server.create_database("rolling")
    place = Place(dsn, tmp_path, server)
    place.sql("create table effect (n bigint not null)")
    try:
        yield place
    finally:
        place.close()
        if server is not None:
            server.drop_database("rolling")


class Release:
    """The programs of one release."""

    def __init__(self, place: Place, name: str, sources: Path) -> None:
        self._place, self._name, self._sources = place, name, sources
        self._started = 0

    def command(self, *arguments: str) -> Process:
        return self._start(["-m", "holdfast", *arguments], {})

    def worker(self, *, first: bool = False) -> Process:
        # On SQLite a process of another release is one of the first one's family, as a child would be.
        family = f"{self._place.directory / 'holdfast.db'}-engine"
        joined = {"HOLDFAST_ENGINE_FAMILY": family} if self._place.on_sqlite and not first else {}
        options = ("--lease", f"{LEASE:g}s", "--grace", "3s", "--concurrency", "4")
        return self._start(["-m", "holdfast", "worker", "--app", f"{APP}:hf", *options], joined)

    def publisher(self, first: int) -> Process:
        return self._start([str(APP), str(first)], {})

    def _start(self, arguments: list[str], environment: dict[str, str]) -> Process:
        self._started += 1
        process = Process(
            [sys.executable, *arguments],
            self._place.directory / f"{self._name}-{self._started}.log",
            {
                **os.environ,
                "PYTHONPATH": str(self._sources),
                "PYTHONUNBUFFERED": "1",
                "HOLDFAST_DSN": self._place.dsn,
                "HOLDFAST_TEST_PLACE": str(self._place.directory),
                "HOLDFAST_TEST_NAME": self._name,
                **environment,
            },
        )
        self._place.processes.append(process)
        return process


def lines(place: Place, name: str = "sink") -> list[str]:
    file = place.directory / name
    return file.read_text().splitlines() if file.exists() else []


def progress(place: Place, name: str, number: int = 30) -> None:
    """Waits until workers of a release have run so many more deliveries."""

    def done() -> int:
        return sum(line.endswith(f"by {name}") for line in lines(place))

    before = done()
    until(lambda: done() >= before + number, f"workers of {name} do not continue", 60, place.logs)


def test_workers_and_publishers_of_the_last_migration_work_next_to_this_code(place: Place, older: Path) -> None:
    old, new = Release(place, "old", older), Release(place, "new", ROOT / "src")
    created = old.command("schema", "migrate")
    assert created.ended(60) == 0, created.log
    publishers = [old.publisher(0)]
    old_workers = [old.worker(first=True), old.worker()]
    progress(place, "old")

    migrated = new.command("schema", "migrate")
    assert migrated.ended(60) == 0, migrated.log
    assert len([line for line in migrated.log.splitlines() if line[:4].isdecimal()]) == 1, migrated.log
    progress(place, "old")
    publishers.append(new.publisher(10**6))
    new_worker = new.worker()
    progress(place, "new")
    progress(place, "old")

    # Each release takes over what the other one held.
    old_workers[1].kill()
    progress(place, "new")
    new_worker.kill()
    progress(place, "old")
    new_worker = new.worker()
    progress(place, "new")
    assert old_workers[0].alive, old_workers[0].log
    old_workers[0].signal(SIGTERM)
    assert old_workers[0].ended() == 0, old_workers[0].log

    (place.directory / "stop").touch()
    assert [publisher.ended() for publisher in publishers] == [0, 0], place.logs()
    place.drained(60)
    assert new_worker.alive, new_worker.log
    check(place)


def check(place: Place) -> None:
    """Nothing is lost, doubled in the database, failed, or out of order."""
    numbers = sorted(int(n) for first in (0, 10**6) for n in lines(place, f"accepted-{first}"))
    assert place.sql("select n from effect order by n") == [(n,) for n in numbers]
    counted = dict(
        place.sql("select consumer, count(*) from {hf}delivery where status = 'delivered' group by consumer")
    )
    trips = sum(n % 5 == 0 for n in numbers)
    every = dict.fromkeys(("book", "ledger", "post", "price"), len(numbers))
    assert counted == every | {"trip/reserve": trips, "trip/charge": trips}, Counter(place.statuses())
    assert place.sql("select status, count(*) from {hf}workflow_run group by status") == [("done", trips)]
    assert place.one("select count(*) from {hf}result") >= len(numbers)
    order: dict[str, list[int]] = defaultdict(list)
    for line in lines(place):
        if line.startswith("ledger "):
            _, customer, n, *_ = line.split()
            if order[customer][-1:] != [int(n)]:  # it may run again after its worker was killed
                order[customer].append(int(n))
    assert all(found == sorted(found) for found in order.values())


@pytest.mark.parametrize("place", ["postgres18"], indirect=True)
def test_a_worker_of_this_code_that_starts_before_the_migration_names_the_remedy(place: Place, older: Path) -> None:
    """On SQLite it migrates the file itself."""
    old, new = Release(place, "old", older), Release(place, "new", ROOT / "src")
    assert old.command("schema", "migrate").ended(60) == 0
    worker = new.worker(first=True)
    assert worker.ended(60) != 0
    assert "run `holdfast schema migrate" in worker.log
    assert place.sql("select count(*) from {hf}worker") == [(0,)]


@pytest.mark.parametrize("place", ["postgres18"], indirect=True)
def test_a_worker_of_the_last_migration_that_starts_after_the_next_one_names_the_remedy(
    place: Place, older: Path
) -> None:
    old, new = Release(place, "old", older), Release(place, "new", ROOT / "src")
    assert new.command("schema", "migrate").ended(60) == 0
    worker = old.worker(first=True)
    assert worker.ended(60) != 0
    assert "upgrade holdfast" in worker.log
    assert place.sql("select count(*) from {hf}worker") == [(0,)]
