"""The demo's worker processes."""

import time
from pathlib import Path

import pytest

from holdfast.interfaces.demo.config import DemoConfig
from holdfast.interfaces.demo.worker_processes import WorkerProcesses, WorkersFailed
from holdfast.ops.service import SyncOperations
from holdfast.stores.sqlite.store import SqliteStore


def test_workers_that_keep_dying_end_the_demo_with_their_last_words(tmp_path: Path) -> None:
    config = DemoConfig(dsn="nonsense:", schema="holdfast", mail_port=1, webhook_port=2)
    workers = WorkerProcesses(config, SyncOperations(SqliteStore(tmp_path / "shop.db")), 2, tmp_path / "workers.log")
    try:
        with pytest.raises(WorkersFailed, match="does not name a store that Holdfast supports"):
            _watch(workers, seconds=30)
    finally:
        workers.close()


def _watch(workers: WorkerProcesses, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        workers.restart_missing()
        time.sleep(0.05)
