"""A shop with data for each test, and two ways to run commands on it."""

import asyncio
import contextlib
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner, Result

from holdfast.core.delivery import Status
from holdfast.interfaces.cli import main
from holdfast.runtime.store_factory import open_store
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import publish
from holdfast.stores.operation import Operation
from holdfast.stores.queries.query import Filter, deliveries
from tests.cli.build import furnish
from tests.servers.postgres import PostgresServer
from tests.servers.tables import empty
from tests.support.builders import job, sql


@dataclass(frozen=True)
class Shop:
    """A store, and the commands of its operators."""

    dsn: str
    folder: Path

    def run(self, *args: object, input: str | None = None, env: dict[str, str | None] | None = None) -> Result:
        """Runs a command in this process, without a terminal. A traceback fails the test."""
        result = CliRunner().invoke(
            main,
            [str(arg) for arg in args],
            input=input,
            env={"HOLDFAST_DSN": self.dsn, "HOLDFAST_APP": None, **(env or {})},
            prog_name="holdfast",
        )
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert "Traceback" not in result.stderr
        return result

    def spawn(self, *args: object, input: str | None = None, **env: str) -> "subprocess.CompletedProcess[str]":
        """Runs a command in a separate process."""
        return subprocess.run(
            command(*args),
            input=input,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.folder,
            env=self.environment(**env),
        )

    def on_terminal(self, *args: object, input: str = "") -> tuple[int, str]:
        """Runs a command on a terminal of 80 columns; returns its exit code and everything it printed."""
        main_end, terminal = pty.openpty()
        printed = b""
        process = subprocess.Popen(
            command(*args),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            cwd=self.folder,
            env=self.environment(COLUMNS="80", NO_COLOR="1", TERM="xterm"),
        )
        os.close(terminal)
        os.write(main_end, input.encode())
        with contextlib.suppress(OSError):  # raised when the command has closed the terminal
            while chunk := os.read(main_end, 65536):
                printed += chunk
        os.close(main_end)
        return process.wait(60), re.sub(r"\x1b\[[0-9;]*m", "", printed.decode()).replace("\r\n", "\n")

    def start(
        self, *args: object, program: tuple[str, ...] = ("-m", "holdfast"), **env: str
    ) -> "subprocess.Popen[str]":
        """Starts a command that runs during the test."""
        return subprocess.Popen(
            command(*args, program=program),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment(**env),
        )

    def environment(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        return {**kept, "HOLDFAST_DSN": self.dsn, **more}

    def ask(self, operation: Operation[Any]) -> Any:
        store = open_store(self.dsn)
        try:
            return store.run_sync(operation)
        finally:
            store.close_sync()

    def ids(self, **wanted: Any) -> list[UUID]:
        """The ids of deliveries, newest first."""
        return [one.delivery.id for one in self.ask(deliveries(Filter(**wanted), 100))]

    def heap(self, count: int) -> None:
        """So many dead letters of the consumer `heap`."""
        store = open_store(self.dsn)
        fanout = Fanout()
        store.run_sync(publish([job("heap", {"n": n}) for n in range(count)], fanout))
        sql(
            store,
            "update {hf}delivery set status = 'failed', completed_at = run_at, last_error = 'boom', fingerprint = 'f' "
            "where consumer = 'heap'",
        )
        store.close_sync()

    def end(self, *, dead: int) -> None:
        """Ends what was replayed: so many die again, the others are delivered."""
        store = open_store(self.dsn)
        chosen = "id in (select delivery_id from {hf}plan_item order by n"
        ended = "completed_at = run_at where status = 'pending' and"
        sql(store, f"update {{hf}}delivery set status = 'failed', {ended} {chosen} limit {dead})")
        sql(store, f"update {{hf}}delivery set status = 'delivered', {ended} {chosen})")
        store.close_sync()

    def replayed(self) -> list[str]:
        """What was replayed of the heap, by the audit, as often as it was."""
        store = open_store(self.dsn)
        rows = sql(store, "select target from {hf}audit where action = 'replay' and kind = 'delivery'")
        store.close_sync()
        return [str(target) for (target,) in rows]

    @property
    def dead(self) -> list[UUID]:
        return self.ids(dead=True)

    @property
    def done(self) -> UUID:
        return self.ids(statuses=(Status.DELIVERED,))[0]

    @property
    def waiting(self) -> UUID:
        return self.ids(consumers=("mail",))[0]


def command(*args: object, program: tuple[str, ...] = ("-m", "holdfast")) -> list[str]:
    return [sys.executable, *program, *(str(arg) for arg in args)]


@pytest.fixture(scope="session")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.db"
    store = open_store(f"sqlite:///{path}")
    store.migrate()
    asyncio.run(furnish(store))
    store.close_sync()
    return path


@pytest.fixture
def shop(furnished: Path, tmp_path: Path) -> Shop:
    """A shop of the test's own, on SQLite."""
    shutil.copy(furnished, tmp_path / "shop.db")
    return Shop(f"sqlite:///{tmp_path / 'shop.db'}", tmp_path)


@pytest.fixture
def postgres_shop(
    postgres18: PostgresServer, database: Callable[[PostgresServer], str], tmp_path: Path
) -> Iterator[Shop]:
    """A shop of the test's own, on PostgreSQL."""
    dsn = database(postgres18)
    store = open_store(dsn)

    async def prepare() -> None:
        await furnish(store)
        await store.close()

    asyncio.run(prepare())
    yield Shop(dsn, tmp_path)
    empty(dsn)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def either(request: pytest.FixtureRequest) -> Shop:
    """A shop on SQLite, and one on PostgreSQL."""
    return request.getfixturevalue("shop" if request.param == "sqlite" else "postgres_shop")
