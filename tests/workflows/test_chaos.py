"""Workers that are killed while runs are under way: every run ends, and each effect happens once."""

import asyncio
import os
import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.stores.workflows.run import RunStatus
from tests.servers.postgres import PostgresServer
from tests.support.worker import query
from tests.workflows import chaos_worker

ROOT = Path(__file__).parents[2]


def start_worker(dsn: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "holdfast", "worker", "--app", "tests.workflows.chaos_worker:hf"),
            *("--lease", "1s", "--concurrency", "20"),
        ],
        cwd=ROOT,
        env={**os.environ, "CHAOS_DSN": dsn},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("count", "seconds"),
    [pytest.param(6, 1.5, id="short"), pytest.param(60, 6.0, id="long", marks=pytest.mark.long)],
)
async def test_every_run_ends_and_each_effect_happens_once(dsn: str, count: int, seconds: float) -> None:
    await survive(dsn, count, seconds)


@pytest.mark.soak
@pytest.mark.timeout(560)
@pytest.mark.parametrize("piece", range(4))
async def test_500_runs_end_although_workers_are_killed(dsn: str, piece: int) -> None:
    await survive(dsn, 500, 60)


@pytest.mark.soak
@pytest.mark.timeout(560)
@pytest.mark.parametrize("piece", range(4))
async def test_500_runs_end_although_workers_and_the_server_are_killed(piece: int) -> None:
    with PostgresServer(18, durable=True) as server:
        dsn = server.create_database("chaos")
        app = Holdfast(dsn)
        app.store.migrate()
        await app.close()
        await survive(dsn, 500, 60, server)


async def survive(dsn: str, count: int, seconds: float, server: PostgresServer | None = None) -> None:
    """Kills workers, and the server if one is given, while runs are under way, and checks how each run ended."""
    workers = 1 if dsn.startswith("sqlite") else 2
    with closing(chaos_worker.connect(dsn)) as conn:
        conn.execute("create table effect (run text, step text)")
        conn.commit()
    hf, flow = chaos_worker.declare(dsn)
    running = [start_worker(dsn) for _ in range(workers)]
    try:
        kills = 0
        runs = [await flow.using(key=f"run {n}").start(n) for n in range(count)]
        for n, run in enumerate(runs):
            if n % 2:
                await run.signal("go", True)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            await asyncio.sleep(random.uniform(0.7, 2.0))
            if server is not None and random.random() < 0.3:
                await asyncio.to_thread(server.kill)
                await asyncio.sleep(random.uniform(0, 0.5))
                await asyncio.to_thread(server.start)
                kills += 1
                continue
            n = random.randrange(workers)
            running[n].kill()
            running[n].wait()
            kills += 1
            running[n] = start_worker(dsn)
        await finished(hf, count, patience=60 + count / 4)
    finally:
        for worker in running:
            worker.kill()
            worker.wait()
        rows = await query(hf, "select run, step, count(*) from effect group by run, step")
        await query(hf, "drop table effect")
        await hf.close()
    counts = {(str(run), str(step)): number for run, step, number in rows}
    assert {key: number for key, number in counts.items() if number > 1} == {}, f"after {kills} kills"
    for n, run in enumerate(runs):
        done = {step for key, step in counts if key == str(run.id)}
        items = {f"item {item}" for item in range(3)}
        assert done == {"reserve", *items, *(["undo"] if n % 5 == 0 else [])}, n
    assert sum(step == "child" for _, step in counts) == count - len(range(0, count, 5))


async def finished(hf: Holdfast, count: int, patience: float) -> None:
    """Waits until every run has ended as it must."""
    deadline = time.monotonic() + patience
    while True:
        rows = await query(hf, "select id, status from {hf}workflow_run where name = 'flow'")
        states = [RunStatus(status) for _, status in rows]
        if not any(state.is_active for state in states):
            break
        open = [(id, status) for id, status in rows if RunStatus(status).is_active]
        if time.monotonic() > deadline:
            unfinished = "where d.status <> 'delivered' and d.message_id in (select id from {hf}workflow_run)"
            columns = "d.consumer, d.status, d.attempts, d.run_at, d.last_error, d.message_id"
            left = await query(hf, f"select {columns} from {{hf}}delivery d {unfinished}")
            raise AssertionError(
                f"{len(open)} of {count} runs are stuck, for example {open[:3]}; deliveries: {left[:20]}"
            )
        await asyncio.sleep(0.2)
    assert states.count(RunStatus.FAILED) == len(range(0, count, 5))
    assert states.count(RunStatus.DONE) == count - len(range(0, count, 5))
