"""A worker whose SQLite file is deleted or replaced ends with an error that names it."""

import asyncio
import shutil
from pathlib import Path

import pytest

from holdfast import Holdfast, StoreReplaced
from tests.support.worker import eventually, options, wait_for


@pytest.mark.parametrize("dsn", ["sqlite"], indirect=True)
@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
async def test_it_ends_with_a_clear_error_also_with_a_handler_running(
    hf: Holdfast, dsn: str, how: str, busy: bool
) -> None:
    started, go = asyncio.Event(), asyncio.Event()

    @hf.job()
    async def wait() -> None:
        started.set()
        await go.wait()

    if busy:
        await wait.enqueue()
    working = asyncio.create_task(hf.work(options(grace="1s", lease="2s")))
    path = Path(dsn.removeprefix("sqlite:///"))
    if busy:
        await wait_for(started)
    else:
        await eventually(hf.ops.workers)
    take_away(path, how)
    go.set()
    with pytest.raises(StoreReplaced, match=how):
        await asyncio.wait_for(working, 10)


def take_away(path: Path, how: str) -> None:
    if how == "deleted":
        path.unlink()
        return
    copy = path.with_name("backup.db")
    shutil.copy(path, copy)
    copy.replace(path)
