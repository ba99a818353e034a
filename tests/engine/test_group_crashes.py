"""Workers of a group that are killed between any two durable steps: the job after it has its effect exactly once."""

import asyncio
import os
import random
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL

import pytest

from holdfast import Holdfast
from tests.engine.programs.group_worker import build
from tests.support.worker import drain, pass_time, query

POINTS = ("settle.committed", "decide.uncommitted", "decide.committed", "effect.completed")


def program(dsn: str, place: Path, point: str) -> subprocess.Popen[bytes]:
    for name in ("markers", "pids"):
        (place / name).mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "HOLDFAST_TEST_PLACE": str(place), "HOLDFAST_TEST_CRASH": point}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engine.programs.group_worker", dsn],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


async def fired(hf: Holdfast) -> int:
    ((count,),) = await query(hf, "select count(*) from fired")
    return int(count)


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_the_effect_happens_once_with_a_kill_at_every_durable_step(dsn: str, tmp_path: Path) -> None:
    hf, group = build(dsn)
    try:
        await query(hf, "create table if not exists fired (n integer)")
        await query(hf, "delete from fired")
        for round, point in enumerate(POINTS, 1):
            handle = await group.enqueue()
            worker = program(dsn, tmp_path / point, point)
            assert await asyncio.to_thread(worker.wait, 60) == -SIGKILL, point
            assert await fired(hf) == round - 1
            await pass_time(hf, timedelta(minutes=1), "delivery", "worker")
            await drain(hf)
            assert await fired(hf) == round, point
            assert await handle.result(timeout=0) == [12, 11, 1]
    finally:
        await hf.close()


class Workers:
    """Workers of the command line, with their quarantine processes. One of them is killed at random times."""

    def __init__(self, dsn: str, count: int) -> None:
        self._command = [sys.executable, "-m", "holdfast", "worker", "--app", "tests.engine.programs.group_app:hf"]
        self._environment = {**os.environ, "HOLDFAST_TEST_GROUP": dsn}
        self.kills = 0
        self.running = [self._start() for _ in range(count)]

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [*self._command, "--lease", "2s"],
            env=self._environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def kill_one(self) -> None:
        worker = self.running.pop(random.randrange(len(self.running)))
        worker.kill()
        worker.wait()
        self.kills += 1
        self.running.append(self._start())

    def stop(self) -> None:
        for worker in self.running:
            worker.terminate()
        for worker in self.running:
            worker.wait(60)


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_ten_thousand_jobs_with_random_kills_run_the_next_job_once(dsn: str) -> None:
    hf, group = build(dsn, 10_000)
    try:
        await query(hf, "create table if not exists fired (n integer)")
        await query(hf, "delete from fired")
        handle = await group.enqueue()
        workers = Workers(dsn, 1 if dsn.startswith("sqlite") else 3)
        try:
            while await fired(hf) == 0:
                await asyncio.sleep(random.uniform(1.0, 3.0))
                if workers.kills < 40:
                    await asyncio.to_thread(workers.kill_one)
            summary = await handle.result(timeout="60s")
        finally:
            await asyncio.to_thread(workers.stop)
        print(f"{workers.kills} kills, {summary}")
        assert await fired(hf) == 1
        assert summary == [10_000, 9_000, 1_000]
        progress = await handle.progress()
        assert (progress.done, progress.failed, progress.left) == (9_001, 1_000, 0), "with the job after them"
        assert workers.kills >= 5
        await pass_time(hf, timedelta(minutes=1), "delivery", "worker")
        await drain(hf)
        assert await fired(hf) == 1
    finally:
        await hf.close()
