"""Four real processes share a circuit: one probe at a time, ever, also when the prober is killed in the middle."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.outbound.programs.caller import PROBE
from tests.servers.postgres import PostgresServer
from tests.servers.redis import RedisServer
from tests.servers.tables import empty

pytestmark = pytest.mark.long

PROCESSES = 4
PATIENCE = 20.0


class Line(NamedTuple):
    at: float
    pid: int
    what: str
    probe: bool


class Crew:
    """The processes, their instructions, and their logs."""

    def __init__(self, kind: str, where: str, directory: Path) -> None:
        self.directory = directory
        command = [sys.executable, "-m", "tests.outbound.programs.caller", kind, where, str(directory)]
        root = Path(__file__).parents[2]
        quiet = {"stdout": subprocess.DEVNULL}
        self.processes = [subprocess.Popen(command, cwd=root, **quiet) for _ in range(PROCESSES)]  # type: ignore[call-overload]

    def tell(self, word: str, *, said: bool = True) -> None:
        (self.directory / word).touch() if said else (self.directory / word).unlink()

    def lines(self) -> list[Line]:
        file = self.directory / "calls"
        if not file.exists():
            return []
        split = (line.split() for line in file.read_text().splitlines())
        return sorted(Line(float(at), int(pid), what, probe == "1") for at, pid, what, probe in split)

    def until(self, seen: Callable[[list[Line]], bool], what: str) -> list[Line]:
        deadline = time.monotonic() + PATIENCE
        while not seen(lines := self.lines()):
            assert time.monotonic() < deadline, f"never seen: {what}"
            time.sleep(0.005)
        return lines

    def kill_prober(self) -> Line:
        """Kills the process that runs a slow probe; returns its first log line."""
        self.tell("slow")
        reported_at = time.monotonic()

        def probing(lines: list[Line]) -> Line | None:
            last = next((line for line in reversed(lines) if line.probe), None)
            slow = last is not None and last.what == "begin" and last.at > reported_at
            return last if slow else None

        begun = probing(self.until(lambda lines: probing(lines) is not None, "a probe under way"))
        assert begun is not None
        os.kill(begun.pid, signal.SIGKILL)
        return begun

    def end(self) -> None:
        self.tell("stop")
        for process in self.processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(params=["redis", "sqlite", "postgres18"])
def crew(request: pytest.FixtureRequest, tmp_path: Path, database) -> Iterator[Crew]:
    kind, after = request.param, None
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("redis")
        where = server.url
    elif kind == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        store = SqliteStore(tmp_path / "circuits.db")
        store.migrate()
        store.close_sync()
        where = f"sqlite:///{tmp_path}/circuits.db"
    else:
        postgres: PostgresServer = request.getfixturevalue(kind)
        where = after = database(postgres)
    crew = Crew(kind, where, tmp_path)
    yield crew
    crew.end()
    if after is not None:
        empty(after)


def probes(lines: list[Line], killed: dict[int, float]) -> list[tuple[float, float, int]]:
    """When each probe began and ended, and who made it; one of a killed process ended with it."""
    found, begun = [], dict[int, float]()
    for line in lines:
        if line.probe and line.what == "begin":
            begun[line.pid] = line.at
        elif line.probe and line.what == "end":
            found.append((begun.pop(line.pid), line.at, line.pid))
    found += [(at, killed[pid], pid) for pid, at in begun.items() if pid in killed]
    return sorted(found)


def test_four_processes_probe_one_at_a_time_and_outlive_a_killed_prober(crew: Crew) -> None:
    crew.until(lambda lines: sum(line.what == "ready" for line in lines) == PROCESSES, "all processes")
    crew.until(lambda lines: sum(line.probe and line.what == "end" for line in lines) >= 5, "five probes that failed")
    victim = crew.kill_prober()
    killed_at = time.monotonic()
    lines = crew.until(
        lambda lines: any(line.probe and line.what == "begin" and line.at > victim.at for line in lines),
        "another probe after the killed one",
    )
    following = next(line for line in lines if line.probe and line.what == "begin" and line.at > victim.at)
    # Not before the dead one's time is over: no process could know that it is dead. Clocks are read a moment apart.
    assert following.at >= victim.at + PROBE - 0.1
    crew.tell("up")
    crew.tell("slow", said=False)
    lines = crew.until(
        lambda lines: len({line.pid for line in lines if line.what == "succeeded" and not line.probe}) == PROCESSES - 1,
        "every living process calling again",
    )
    crew.end()

    intervals = probes(lines, {victim.pid: killed_at})
    assert len(intervals) >= 6
    for (_, end, _), (begin, _, _) in pairwise(intervals):
        assert end <= begin, "two probes at the same time"
    assert sum(line.what == "succeeded" and line.probe for line in lines) == 1
