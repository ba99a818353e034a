"""Workers that are killed around the settlement of a result: it exists with the settlement, and never without it."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL

import pytest

from holdfast.core.delivery import Status
from holdfast.core.identity import delivery_id
from tests.engine.programs.result_worker import build
from tests.support.worker import all_of, drain, pass_time, query

JOBS = 4


def work_until_killed(dsn: str, place: Path, point: str) -> None:
    for name in ("markers", "pids"):
        (place / name).mkdir(parents=True)
    environment = {**os.environ, "HOLDFAST_TEST_PLACE": str(place), "HOLDFAST_TEST_CRASH": point}
    program = [sys.executable, "-m", "tests.engine.programs.result_worker", dsn]
    assert subprocess.run(program, env=environment, timeout=60, capture_output=True).returncode == -SIGKILL


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("point", "job"),
    [("settle.uncommitted", "returns"), ("settle.committed", "returns"), ("effect.completed", "completes")],
)
async def test_a_result_is_never_lost_and_never_early(dsn: str, tmp_path: Path, point: str, job: str) -> None:
    hf, jobs = build(dsn)
    try:
        handles = [await jobs[job].enqueue(n) for n in range(JOBS)]
        work_until_killed(dsn, tmp_path / "place", point)
        stored = {(str(id), fence) for id, fence in await query(hf, "select delivery_id, fence from {hf}result")}
        done = {(str(row.id), row.fence) for row in await all_of(hf) if row.status is Status.DELIVERED}
        assert stored == done
        assert bool(done) is point.endswith(".committed")
        ended = {id for id, _ in done}
        early = [handle for handle in handles if str(delivery_id(handle.id, job)) in ended]
        kept = {handle.id: await handle.result(timeout=0) for handle in early}
        await pass_time(hf, timedelta(minutes=1), "delivery", "worker")
        await drain(hf)
        results = {handle.id: await handle.result(timeout=0) for handle in handles}
        assert [n for n, _ in results.values()] == list(range(JOBS))
        # What was delivered before the kill did not run again.
        assert {id: results[id] for id in kept} == kept
    finally:
        await hf.close()


@pytest.mark.long
@pytest.mark.timeout(120)
@pytest.mark.parametrize("point", ["settle.committed", pytest.param("settle.uncommitted", marks=pytest.mark.soak)])
async def test_rows_go_with_the_settlement_and_a_job_whose_rows_are_gone_does_not_run_again(
    dsn: str, tmp_path: Path, point: str
) -> None:
    hf, jobs = build(dsn)
    try:
        handles = [await jobs["removes"].enqueue(n) for n in range(JOBS)]
        work_until_killed(dsn, tmp_path / "place", point)
        stored = {str(id) for (id,) in await query(hf, "select delivery_id from {hf}result")}
        left = {str(row.id) for row in await all_of(hf)}
        every = {str(delivery_id(handle.id, "removes")) for handle in handles}
        assert (stored | left, stored & left) == (every, set())
        assert bool(stored) is point.endswith(".committed")
        await pass_time(hf, timedelta(minutes=1), "delivery", "worker")
        await drain(hf)
        assert (await all_of(hf), await query(hf, "select id from {hf}message")) == ([], [])
        results = [await handle.result(timeout=0) for handle in handles]
        assert [n for n, _ in results] == list(range(JOBS))
        again = {
            str(delivery_id(one.id, "removes")) for one, (_, fence) in zip(handles, results, strict=True) if fence > 1
        }
        assert not again & stored
    finally:
        await hf.close()
