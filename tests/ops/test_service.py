"""`hf.ops`: one text of each task, awaited or blocking."""

import inspect
from pathlib import Path

import pytest

from holdfast import Filter, Holdfast, NotFound
from holdfast.ops.service import Operations, SyncOperations
from holdfast.ops.steps import ServiceMethod


async def test_an_app_has_its_operations_before_anything_was_published(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'fresh.db'}")
    assert (await hf.ops.stats()).pending == 0
    await hf.publish("order.placed", {"n": 1}, conn=None)
    assert [one.type for one in await hf.ops.messages()] == ["order.placed"]
    plan = await hf.ops.plan_replay(Filter(), limit=10)
    assert plan.items == 0
    await hf.close()


def test_both_sides_offer_the_same_tasks_with_their_words(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'fresh.db'}")
    tasks = [name for name in dir(Operations) if isinstance(inspect.getattr_static(Operations, name), ServiceMethod)]
    assert len(tasks) > 30
    for name in tasks:
        awaiting, blocking = getattr(hf.ops, name), getattr(hf.ops.sync, name)
        assert inspect.iscoroutinefunction(awaiting), name
        assert not inspect.iscoroutinefunction(blocking), name
        assert inspect.signature(awaiting) == inspect.signature(blocking)
        assert awaiting.__doc__, name
        assert isinstance(getattr(Operations, name), ServiceMethod)
    assert hf.ops.sync.stats().pending == 0
    assert isinstance(hf.ops.sync, SyncOperations)
    hf.store.close_sync()


async def test_an_error_leaves_nothing_open(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'fresh.db'}")
    for _ in range(3):
        with pytest.raises(NotFound):
            await hf.ops.pause_consumer("nobody", actor="ada")
    assert await hf.ops.audit() == []
    await hf.close()
