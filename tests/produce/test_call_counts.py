"""What a publish costs in Python calls: unlike a time, the count is the same on every machine."""

import cProfile
import pstats
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import Holdfast

COUNT = 1000


def calls_of(work: Callable[[], object]) -> int:
    """How many functions `work` calls, the second time: the first one fills caches."""
    work()
    profile = cProfile.Profile()
    profile.runcall(work)
    return pstats.Stats(profile).total_calls  # type: ignore[attr-defined]


@pytest.fixture
def hf(tmp_path: Path) -> Holdfast:
    hf = Holdfast(f"sqlite:///{tmp_path / 'app.db'}")

    @hf.consumer("order.placed", name="mail")
    async def mail(payload: dict[str, object]) -> None: ...

    hf.store.migrate()
    return hf


def test_a_large_batch_costs_few_calls_per_message(hf: Holdfast) -> None:
    events = [("order.placed", {"n": n, "text": "x" * 50}) for n in range(COUNT)]
    assert calls_of(lambda: hf.sync.publish_many(events, conn=None)) / COUNT < 11


def test_many_calls_of_a_job_cost_few_calls_each(hf: Holdfast) -> None:
    @hf.job(name="send")
    async def send(to: object, n: object) -> None: ...

    calls = [("ada", n) for n in range(COUNT)]
    assert calls_of(lambda: send.sync.enqueue_many(calls)) / COUNT < 32


def test_one_publish_in_a_callers_transaction_costs_a_bounded_number_of_calls(hf: Holdfast) -> None:
    hf.sync.publish_many([], conn=None)  # registers the consumer
    with sqlite3.connect(hf.dsn.removeprefix("sqlite:///"), isolation_level=None) as db:

        def publish() -> None:
            db.execute("begin immediate")
            hf.sync.publish("order.placed", {"n": 1}, conn=db)
            db.execute("commit")

        count = calls_of(publish)
    db.close()
    assert count < 222
