"""Files with payloads are readable only by their owner, with any umask."""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.stores.sqlite.store import SqliteStore
from tests.cli.conftest import Shop


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {one.name: stat.S_IMODE(one.stat().st_mode) for one in folder.iterdir() if one.is_file()}


def test_a_new_store_and_the_files_next_to_it_are_private(tmp_path: Path) -> None:
    hf = Holdfast(f"sqlite:///{tmp_path / 'shop.db'}")

    @hf.consumer("order.placed", name="billing")
    def billing(_: object) -> None:
        seen.update(modes(tmp_path))

    seen: dict[str, int] = {}
    hf.sync.publish("order.placed", {"card": "4111"}, conn=None)
    hf.run(until_idle=True)
    assert seen.keys() >= {"shop.db", "shop.db-wal", "shop.db-shm", "shop.db-engine"}
    assert set(seen.values()) == {0o600}


def test_a_store_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as own:
        own.execute("create table orders (id)")
    (tmp_path / "shop.db").chmod(0o640)
    store = SqliteStore(tmp_path / "shop.db")
    store.migrate()
    assert set(modes(tmp_path).values()) == {0o640}
    store.close_sync()


def test_exports_and_plan_files_are_private(shop: Shop, tmp_path: Path) -> None:
    export, plan = tmp_path / "dead.jsonl", tmp_path / "plan.json"
    assert shop.run("dlq", "export", "--output", export).exit_code == 0
    assert shop.run("replay", "--consumer", "billing", "--dry-run", "--plan", plan).exit_code == 0
    assert export.stat().st_size
    assert (stat.S_IMODE(export.stat().st_mode), stat.S_IMODE(plan.stat().st_mode)) == (0o600, 0o600)
