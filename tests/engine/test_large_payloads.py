"""FAULTS 69: many large payloads at once do not exceed the worker's memory."""

import resource
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from holdfast import Holdfast
from tests.engine.programs.place import Place, Process, postgres_place, sqlite_place
from tests.servers.postgres import PostgresServer

MB = 1_000_000


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "sqlite":
        with sqlite_place(tmp_path) as place:
            yield place
    else:
        server: PostgresServer = request.getfixturevalue("postgres18")
        with postgres_place(server, tmp_path) as place:
            yield place


def drain(place: Place, count: int, size: int, *, room: int | None = None, limit: int | None = None) -> Process:
    """Publishes payloads of `size` bytes; a worker with a limited address space must deliver each at its first attempt."""
    app = Holdfast(place.dsn, max_payload=size + 1000)
    worker = place.worker("lab", more=("--queues", "other:1"))
    worker.says("worker started")
    place.registered("weigh")
    for n in range(count):
        app.sync.publish("weigh", {"n": n, "text": "x" * size}, conn=None)
    app.store.close_sync()
    worker.kill()
    # Started again with everything due, as after an outage: the first claims take as many as there are slots.
    worker = place.worker("lab", lease=10, concurrency=50, environment={"MALLOC_ARENA_MAX": "2"})
    worker.says("worker started")
    started_with = psutil.Process(worker.pid).memory_info().vms
    most = limit if limit is not None else started_with + (room or 0)
    resource.prlimit(worker.pid, resource.RLIMIT_AS, (most, most))
    place.drained(20 + count * size / (5 * MB))
    status = Path(f"/proc/{worker.pid}/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmPeak"))
    print(
        f"{count} x {size / MB:g} MB: limit {most / MB:.0f} MB, at start {started_with / MB:.0f}, peak {peak / 1024:.0f} MiB"
    )
    return worker


def all_delivered_at_once(place: Place, count: int) -> None:
    assert place.statuses() == {"delivered": count}
    assert place.one("select max(attempts) from {hf}delivery") == 1
    assert len({text for _, text in place.notes()}) == len(place.notes()) == count


@pytest.mark.long
@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits another process's memory, which only Linux can")
def test_a_worker_delivers_more_bytes_than_fit_into_its_memory(place: Place) -> None:
    drain(place, 32, 6 * MB, room=220 * MB)
    all_delivered_at_once(place, 32)


@pytest.mark.soak
def test_a_worker_delivers_100_payloads_of_10_mb_under_900_mb(place: Place) -> None:
    drain(place, 100, 10 * MB, limit=900 * MB)
    all_delivered_at_once(place, 100)
