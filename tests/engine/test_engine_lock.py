"""The lock of the engine on SQLite: a worker waits for the child processes of one that was killed."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast import EngineRunning, EngineStopping, Holdfast
from tests.support.worker import Log, drain, eventually, logged, working

pytestmark = pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)


@contextmanager
def locked(dsn: str, pid: int) -> Iterator[None]:
    """The lock of the engine is held by another open file, whose process has this id."""
    with Path(f"{dsn.removeprefix('sqlite:///')}-engine").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write(f"process {pid}")
        lock.flush()
        yield


def ended_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


async def test_a_worker_waits_for_the_child_processes_of_a_killed_one(hf: Holdfast, dsn: str, log: Log) -> None:
    done: list[int] = []

    @hf.job()
    async def work(n: int) -> None:
        done.append(n)

    await work.enqueue(1)
    pid = ended_process()
    with locked(dsn, pid), pytest.raises(EngineStopping, match=f"process {pid}"):
        await drain(hf)
    with locked(dsn, pid):
        async with working(hf):
            (line, *_) = await eventually(lambda: logged(log, "store unavailable"))
    assert ("child processes" in line["error"], done) == (True, [])
    async with AsyncExitStack() as worker:
        with locked(dsn, pid):
            await worker.enter_async_context(working(hf))
            await eventually(lambda: len(logged(log, "store unavailable")) > 1)
        await eventually(lambda: done)


async def test_a_second_engine_is_refused_while_the_first_one_runs(hf: Holdfast, dsn: str) -> None:
    with locked(dsn, os.getpid()), pytest.raises(EngineRunning, match=f"process {os.getpid()}"):
        await hf.work()
