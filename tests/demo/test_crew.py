"""The demo's worker processes."""

import time
from pathlib import Path

import pytest

from holdfast.interfaces.demo.crew import Crew, CrewFailed
from holdfast.interfaces.demo.place import Place
from holdfast.ops.service import SyncOperations
from holdfast.stores.sqlite.store import SqliteStore


def test_workers_that_keep_dying_end_the_demo_with_their_last_words(tmp_path: Path) -> None:
    place = Place(dsn="nonsense:", schema="holdfast", mail_port=1, webhook_port=2)
    crew = Crew(place, SyncOperations(SqliteStore(tmp_path / "shop.db")), 2, tmp_path / "workers.log")
    try:
        with pytest.raises(CrewFailed, match="names no store Holdfast knows"):
            _watch(crew, seconds=30)
    finally:
        crew.close()


def _watch(crew: Crew, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        crew.mend()
        time.sleep(0.05)
