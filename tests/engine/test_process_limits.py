"""A worker that ends at a limit and is replaced, and the notifications of a service manager."""

import asyncio
import gc
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import ConfigurationError, Holdfast, WorkerOptions
from holdfast.core.values.size import parse_size
from holdfast.engine.worker.process_limits import memory_in_use
from tests.engine.programs.place import Place, Process, postgres_place, sqlite_place, until
from tests.support.worker import PATIENCE, all_of, options


@pytest.fixture(params=["sqlite", "postgres18"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with (
        sqlite_place(tmp_path)
        if request.param == "sqlite"
        else postgres_place(request.getfixturevalue(request.param), tmp_path)
    ) as place:
        yield place


def start(place: Place, *more: str, **environment: str) -> Process:
    return place.worker("lab", grace=5, more=more, environment=environment)


@pytest.mark.long
def test_a_process_is_drained_and_replaced_after_its_deliveries(place: Place) -> None:
    place.app()
    worker = start(place, "--max-deliveries", "5")
    place.registered("nap")
    for n in range(12):
        place.publish("nap", n=n, seconds=0.3)
        until(lambda n=n: place.times(f"nap {n} ended") == 1, f"{n} did not run", 30, place.logs)  # type: ignore[misc]
    place.drained()
    assert worker.log.count("worker recycling") >= 2
    assert place.statuses() == {"delivered": 12}
    assert [place.times(f"nap {n} started") for n in range(12)] == [1] * 12
    worker.signal(signal.SIGTERM)
    assert worker.ended(20) == 0


@pytest.mark.long
def test_a_memory_limit_below_the_start_is_refused_before_any_process_starts(place: Place) -> None:
    worker = start(place, "--max-memory", "1MB")
    assert worker.ended(30) == 2
    assert "max_memory is 1 MB, and the app uses" in worker.log
    assert "worker process started" not in worker.log


async def test_an_embedded_worker_ends_at_its_limit_and_lets_handlers_finish(hf: Holdfast) -> None:
    finished = []

    @hf.consumer("thing")
    async def handler(body: dict[str, int]) -> None:
        await asyncio.sleep(0.2)
        finished.append(body["n"])

    await hf.publish_many([("thing", {"n": n}) for n in range(30)], conn=None)
    await asyncio.wait_for(hf.work(options(concurrency=3, max_deliveries=6)), PATIENCE)
    rows = await all_of(hf, "handler")
    assert 6 <= len(finished) < 30
    assert sum(row.status.value == "delivered" for row in rows) == len(finished)
    assert {row.status.value for row in rows} == {"delivered", "pending"}


async def test_an_embedded_worker_ends_when_it_uses_too_much_memory(hf: Holdfast) -> None:
    kept = []

    @hf.consumer("thing")
    async def handler(body: dict[str, int]) -> None:
        kept.append(b"x" * 200_000_000)

    gc.collect()  # garbage of other tests that is freed during the test would make room below the limit
    used = memory_in_use()
    assert used is not None
    working = asyncio.create_task(hf.work(options(max_memory=used + 50_000_000)))
    await asyncio.sleep(0.6)
    assert not working.done()
    await hf.publish("thing", {"n": 1}, conn=None)
    await asyncio.wait_for(working, PATIENCE)
    assert len(kept) == 1


@pytest.mark.parametrize(("text", "size"), [("1000", 1000), ("512MB", 512_000_000), ("1 GiB", 2**30), ("2kb", 2000)])
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "0MB", "MB", "-1", "1.5GB", "1TB", "1MB2", "lots"])
def test_other_texts_are_not_sizes(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a size; write"):
        parse_size(text)


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "5"])
@pytest.mark.parametrize("name", ["max_deliveries", "max_memory"])
def test_limits_are_whole_numbers(name: str, value: object) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} is .*; give a whole number"):
        WorkerOptions(**{name: value})  # type: ignore[arg-type]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.settimeout(30)
        yield bound


@pytest.mark.long
@pytest.mark.parametrize(
    "more", [(), ("--processes", "2"), ("--max-deliveries", "100")], ids=["one", "two", "recycled"]
)
def test_a_service_manager_learns_that_a_worker_is_ready_alive_and_stopping(
    tmp_path: Path, service: socket.socket, more: tuple[str, ...]
) -> None:
    with sqlite_place(tmp_path) as place:
        worker = start(place, *more, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="600000")
        received: list[bytes] = []
        while b"READY=1" not in received or received.count(b"WATCHDOG=1") < 4:
            received.append(service.recv(100))
        assert received.count(b"READY=1") == 1
        worker.signal(signal.SIGTERM)
        while received[-1] != b"STOPPING=1":
            received.append(service.recv(100))
        assert worker.ended(20) == 0


def drain(service: socket.socket) -> None:
    while service.recv(100):
        pass


@pytest.mark.long
def test_a_loop_that_hangs_stops_the_pings(tmp_path: Path, service: socket.socket) -> None:
    with sqlite_place(tmp_path) as place:
        start(place, NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="400000")
        while service.recv(100) != b"READY=1":
            pass
        place.registered("hang")
        place.publish("hang", n=1, seconds=3)
        place.noted("hang 1 started")
        service.settimeout(1.5)
        with pytest.raises(TimeoutError):
            drain(service)


async def test_a_missing_service_manager_does_not_stop_a_worker(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", "/nowhere/notify")

    @hf.consumer("thing")
    async def handler(body: dict[str, int]) -> None: ...

    await hf.publish("thing", {}, conn=None)
    await asyncio.to_thread(hf.run, until_idle=True)
    assert "NOTIFY_SOCKET" not in os.environ
