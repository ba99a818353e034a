"""Processes that are killed around a cancellation: it holds from its commit on, and before that nothing has changed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from signal import SIGKILL
from uuid import UUID

import pytest

from holdfast import Holdfast, JobFailed
from holdfast.core.delivery import Status
from holdfast.stores.admin.actions import audit
from tests.engine.programs.cancel_worker import build
from tests.support.worker import drain, eventually, only, pass_time, query

pytestmark = [pytest.mark.long, pytest.mark.timeout(120)]


def command(dsn: str, action: str, id: UUID) -> list[str]:
    return [sys.executable, "-m", "tests.engine.programs.cancel_worker", dsn, action, str(id)]


def environment(directory: Path, point: str = "") -> dict[str, str]:
    for name in ("markers", "pids"):
        (directory / name).mkdir(exist_ok=True)
    return {**os.environ, "HOLDFAST_TEST_PLACE": str(directory), "HOLDFAST_TEST_CRASH": point}


def cancel(dsn: str, directory: Path, id: UUID, point: str) -> int:
    """The exit code of a process that cancels the job and is killed at this point."""
    return subprocess.run(command(dsn, "cancel", id), env=environment(directory, point), timeout=60).returncode


@contextmanager
def working(dsn: str, directory: Path, id: UUID) -> Iterator["subprocess.Popen[bytes]"]:
    """A worker that runs the job."""
    worker = subprocess.Popen(command(dsn, "work", id), env=environment(directory), stderr=subprocess.DEVNULL)
    try:
        yield worker
    finally:
        worker.kill()
        worker.wait(20)


def allow(directory: Path) -> None:
    (directory / "markers" / "started.go").touch()


async def has_started(directory: Path) -> None:
    await eventually((directory / "markers" / "started").exists)


async def assert_cancelled(hf: Holdfast) -> None:
    """Cancelled and audited once."""
    found = await only(hf)
    assert (found.status, found.last_error, found.discarded_at is not None) == (Status.FAILED, "customer left", True)
    assert [(entry.actor, entry.action) for entry in await hf.store.run(audit())] == [("ada", "cancel")]


@pytest.mark.parametrize("running", [False, True], ids=["waiting", "running"])
async def test_a_cancellation_killed_before_its_commit_changes_nothing(dsn: str, tmp_path: Path, running: bool) -> None:
    hf, job = build(dsn)
    try:
        handle = await job.enqueue()
        if running:
            with working(dsn, tmp_path, handle.id) as worker:
                await has_started(tmp_path)
                assert cancel(dsn, tmp_path, handle.id, "cancel.uncommitted") == -SIGKILL
                allow(tmp_path)
                assert worker.wait(60) == 0
        else:
            assert cancel(dsn, tmp_path, handle.id, "cancel.uncommitted") == -SIGKILL
            allow(tmp_path)
            with working(dsn, tmp_path, handle.id) as worker:
                assert worker.wait(60) == 0
        assert await handle.result(timeout="5s") == "run 1"
        assert await hf.store.run(audit()) == []
    finally:
        await hf.close()


async def test_a_cancellation_killed_after_its_commit_holds_for_a_run_that_ends_later(dsn: str, tmp_path: Path) -> None:
    hf, job = build(dsn)
    try:
        handle = await job.enqueue()
        with working(dsn, tmp_path, handle.id) as worker:
            await has_started(tmp_path)
            assert cancel(dsn, tmp_path, handle.id, "cancel.committed") == -SIGKILL
            allow(tmp_path)
            assert worker.wait(60) == 0
        with pytest.raises(JobFailed, match="was cancelled"):
            await handle.result(timeout="5s")
        await assert_cancelled(hf)
    finally:
        await hf.close()


async def test_a_cancelled_run_whose_worker_is_killed_does_not_run_again(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TEST_PLACE", str(tmp_path))
    hf, job = build(dsn)
    try:
        handle = await job.enqueue()
        with working(dsn, tmp_path, handle.id) as worker:
            await has_started(tmp_path)
            assert cancel(dsn, tmp_path, handle.id, "cancel.committed") == -SIGKILL
            worker.kill()
            assert worker.wait(20) == -SIGKILL
        (tmp_path / "markers" / "started").unlink()
        allow(tmp_path)
        await pass_time(hf, timedelta(hours=2), "delivery", "worker")
        await drain(hf)
        assert not (tmp_path / "markers" / "started").exists(), "the job was run again"
        with pytest.raises(JobFailed, match="was cancelled"):
            await handle.result(timeout="5s")
        await assert_cancelled(hf)
        assert await query(hf, "select attempts from {hf}delivery") == [(1,)]
    finally:
        await hf.close()
