"""Where an app under test lives: a separate database, a directory for what it leaves, and its processes."""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from itertools import count
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM, Signals
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg

from holdfast import Holdfast
from holdfast.core.message import Address
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import publish
from holdfast.stores.postgres.store import PostgresStore
from tests.servers.postgres import PostgresServer
from tests.support.stores import copy_migrated

ROOT = Path(__file__).parents[3]
PATIENCE = 30.0

_TEMPLATE = "fault_template"
_numbers = count(1)
_templates: set[int] = set()


class Process:
    """One program of the test's own, with everything it printed in a file. Signalled by its id, and no other."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log_file = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        self.pid = self._popen.pid

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """The exit code, none while it runs; minus the signal that ended it."""
        return self._popen.poll()

    @property
    def alive(self) -> bool:
        return self.code is None

    def signal(self, number: Signals) -> None:
        """Sends a signal; a further one of its kind will not be taken for the same."""
        if self.alive:
            os.kill(self.pid, number)
            if number == SIGTERM:
                until(lambda: not self._pends(number), f"process {self.pid} does not take signals")

    def _pends(self, number: Signals) -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            status = Path(f"/proc/{self.pid}/status").read_text()
            (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("ShdPnd")]
            return bool(int(mask, 16) & 1 << number - 1)
        return False

    def kill(self) -> None:
        """SIGKILL; returns when it is gone."""
        self.signal(SIGKILL)
        self._popen.wait(PATIENCE)

    def kill_family(self) -> None:
        """SIGKILL for it and for the worker processes it supervises."""
        children = self.children()
        self.kill()
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()

    def ended(self, seconds: float = PATIENCE) -> int:
        """Waits for the end and returns the exit code."""
        try:
            return self._popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"process {self.pid} did not end within {seconds:g} s:\n{self.log[-4000:]}") from None

    def says(self, text: str, seconds: float = PATIENCE) -> None:
        """Waits until it has printed this."""
        until(lambda: text in self.log, f"process {self.pid} never said {text!r}", seconds, lambda: self.log[-4000:])

    def stopped(self) -> None:
        """SIGSTOP, and every one of its threads stands still when this returns."""
        self.signal(SIGSTOP)
        process = psutil.Process(self.pid)
        until(lambda: process.status() == psutil.STATUS_STOPPED, f"process {self.pid} did not stop")

    def resumed(self) -> None:
        self.signal(SIGCONT)

    def children(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.pid).children()
        return []


class Place:
    """One database with migrated tables, and the processes that work on it."""

    def __init__(self, dsn: str, directory: Path, server: PostgresServer | None = None) -> None:
        self.dsn, self.directory, self.server = dsn, directory, server
        self.markers = directory / "markers"
        for folder in (self.markers, directory / "pids"):
            folder.mkdir(parents=True, exist_ok=True)
        self.processes: list[Process] = []
        self._apps: list[Holdfast] = []
        self._session: psycopg.Connection | None = None

    @property
    def on_sqlite(self) -> bool:
        return self.dsn.startswith("sqlite")

    @property
    def sink(self) -> Path:
        return self.directory / "sink"

    def app(self, dsn: str | None = None) -> Holdfast:
        """An app without handlers, to publish with from this process."""
        name = "" if self.on_sqlite else "?application_name=test"
        self._apps.append(Holdfast((dsn or self.dsn) + name))
        return self._apps[-1]

    def publish(self, type: str, **body: object) -> str:
        """Publishes one event in a separate transaction; returns its id."""
        if not self._apps:
            self.app()
        return str(self._apps[0].sync.publish(type, body, conn=None).id)

    def publish_later(self, consumer: str, delay: timedelta, **body: object) -> None:
        """Publishes a message to one consumer that is due after a while, by the database's clock."""
        app = self.app()
        address = Address(consumer=consumer, queue="default", priority=1, delay=delay)
        message = app._runtime.producer.build(f"job.{consumer}", body, addressed=[address])
        app.store.run_sync(publish([message], Fanout()))

    def publish_many(self, type: str, bodies: Sequence[dict[str, object]]) -> None:
        """Publishes events in one transaction, so that a worker claims them together."""
        if not self._apps:
            self.app()
        app = self._apps[0]
        app.store.run_sync(publish([app._runtime.producer.build(type, body) for body in bodies], Fanout()))

    def notes(self) -> list[tuple[float, str]]:
        """What the laboratory's handlers noted, with the machine's monotonic time."""
        lines = self.sink.read_text().splitlines() if self.sink.exists() else []
        return [(float(time), text) for time, _, text in (line.partition(" ") for line in lines)]

    def noted(self, text: str, seconds: float = PATIENCE) -> float:
        """Waits until a handler has noted this; when that was."""
        until(lambda: any(text in note for _, note in self.notes()), f"no program noted {text!r}", seconds, self.logs)
        return next(at for at, note in self.notes() if text in note)

    def times(self, text: str) -> int:
        """How often a handler noted this."""
        return sum(text in note for _, note in self.notes())

    def worker(
        self,
        app: str,
        *,
        lease: float = 2,
        grace: float = 5,
        concurrency: int = 8,
        dsn: str | None = None,
        crash: str = "",
        environment: dict[str, str] | None = None,
        more: tuple[str, ...] = (),
    ) -> Process:
        """Starts `holdfast worker` for one of the programs next to this file, to die at a named crash point if given."""
        spec = Path(__file__).with_name(app) if app.endswith(".py") else f"tests.engine.programs.{app}"
        return self.program(
            *("holdfast", "worker", "--app", f"{spec}:hf"),
            *("--lease", f"{lease:g}s", "--grace", f"{grace:g}s", "--concurrency", str(concurrency)),
            *more,
            dsn=dsn,
            environment={"HOLDFAST_TEST_CRASH": crash, **(environment or {})},
        )

    def program(
        self, module: str, *arguments: str, dsn: str | None = None, environment: dict[str, str] | None = None
    ) -> Process:
        """Starts `python -m module`."""
        process = Process(
            [sys.executable, "-m", module, *arguments],
            self.directory / f"{'-'.join([module.rpartition('.')[2], *arguments[:1]])}-{len(self.processes)}.log",
            {
                **os.environ,
                "HOLDFAST_DSN": dsn or self.dsn,
                "PYTHONUNBUFFERED": "1",
                "HOLDFAST_TEST_PLACE": str(self.directory),
                **(environment or {}),
            },
        )
        self.processes.append(process)
        return process

    def sql(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        """Runs one statement behind the store's back, committed; `{hf}` is the store's prefix, `?` a value."""
        if self.on_sqlite:
            with closing(sqlite3.connect(self._path, isolation_level=None, timeout=30)) as db:
                return db.execute(text.replace("{hf}", "holdfast_"), values).fetchall()
        statement = text.replace("{hf}", "holdfast.").replace("?", "%s").encode()
        if self._session is not None:
            try:
                return _rows(self._session.execute(statement, values))
            except psycopg.OperationalError:  # the server was killed in the meantime
                self._session.close()
        self._session = psycopg.connect(self.dsn, autocommit=True, connect_timeout=10, application_name="test")
        return _rows(self._session.execute(statement, values))

    def one(self, text: str, *values: object) -> Any:
        """The first column of the first row."""
        return self.sql(text, *values)[0][0]

    def statuses(self) -> dict[str, int]:
        """How many deliveries are in each state."""
        return dict(self.sql("select status, count(*) from {hf}delivery group by status"))

    def undone(self) -> int:
        """How many deliveries are neither delivered nor failed."""
        return int(self.one("select count(*) from {hf}delivery where status in ('pending', 'in_flight')"))

    def drained(self, seconds: float = PATIENCE) -> None:
        """Waits until every delivery is delivered or failed."""
        until(lambda: not self.undone(), "it does not drain", seconds, lambda: f"{self.statuses()}\n{self.logs()}")

    def delivered(self, number: int, consumer: str, seconds: float = PATIENCE) -> None:
        """Waits until so many deliveries of a consumer are delivered."""
        query = "select count(*) from {hf}delivery where status = 'delivered' and consumer = ?"
        until(
            lambda: self.one(query, consumer) >= number,
            f"{consumer} has not {number} delivered",
            seconds,
            lambda: f"{self.statuses()}\n{self.logs()}",
        )

    def registered(self, consumer: str, seconds: float = PATIENCE) -> None:
        """Waits until a living worker serves the consumer."""
        until(lambda: consumer in self._served(), f"no worker serves {consumer}", seconds, self.logs)

    def _served(self) -> str:
        return repr(self.sql("select consumers from {hf}worker"))

    def reached(self, marker: str, seconds: float = PATIENCE) -> None:
        """Waits until a program has come to this marker."""
        until((self.markers / marker).exists, f"no program reached {marker}", seconds, self.logs)

    def allow(self, marker: str) -> None:
        """Lets programs that wait at this marker continue."""
        (self.markers / f"{marker}.go").touch()

    def logs(self) -> str:
        """The end of what every process printed."""
        return "\n".join(f"--- {p.log_file.name} (code {p.code})\n{p.log[-3000:]}" for p in self.processes[-6:])

    def terminate_backends(self, role: str | None = None) -> int:
        """Ends sessions of one application name, or of all but the test's own; how many there were."""
        assert self.server is not None
        (row,) = self.server.execute(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = %s "
            "and pid <> pg_backend_pid() and application_name <> 'test' and (%s::text is null or application_name = %s)",
            (urlsplit(self.dsn).path[1:], role, role),
        )
        return int(row[0])

    def stop(self, process: Process) -> None:
        """SIGSTOP between two transactions: on SQLite one that is stopped inside a write keeps everybody out."""
        process.stopped()
        while self.on_sqlite and not self._writable():
            process.resumed()
            time.sleep(0.01)
            process.stopped()

    def _writable(self) -> bool:
        with closing(sqlite3.connect(self._path, isolation_level=None, timeout=1)) as db:
            try:
                db.execute("begin immediate")
            except sqlite3.OperationalError:
                return False
            db.execute("rollback")
            return True

    @property
    def _path(self) -> Path:
        return self.directory / "holdfast.db"

    def close(self) -> None:
        """Ends every process that was started for this place, and their children, each by its id."""
        for process in self.processes:
            process.resumed()
            process.kill()
        # A child that a worker started outlives a worker that was killed; every program leaves its id here.
        for file in (self.directory / "pids").glob("*"):
            with suppress(psutil.NoSuchProcess):
                other = psutil.Process(int(file.name))
                if any("tests.engine.programs" in part.replace("/", ".") for part in other.cmdline()):
                    other.kill()
                    other.wait(PATIENCE)
        for app in self._apps:
            app.store.close_sync()
        if self._session is not None:
            self._session.close()


def _rows(cursor: psycopg.Cursor) -> list[tuple[Any, ...]]:
    return cursor.fetchall() if cursor.description else []


def until(holds: Callable[[], bool], problem: str, seconds: float = PATIENCE, detail: Callable[[], str] = str) -> None:
    """Waits for something that another process does."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{problem}, within {seconds:g} s\n{detail()}")
        time.sleep(0.02)


@contextmanager
def sqlite_place(directory: Path) -> Iterator[Place]:
    """A place on SQLite."""
    copy_migrated(directory / "holdfast.db")
    place = Place(f"sqlite:///{directory / 'holdfast.db'}", directory)
    try:
        yield place
    finally:
        place.close()


@contextmanager
def postgres_place(server: PostgresServer, directory: Path) -> Iterator[Place]:
    """A place on a server: a copy of a migrated database."""
    if server.port not in _templates:
        store = PostgresStore(server.create_database(_TEMPLATE))
        store.migrate()
        store.close_sync()
        _templates.add(server.port)
    name = f"fault_{next(_numbers)}"
    place = Place(server.create_database(name, _TEMPLATE), directory, server)
    try:
        yield place
    finally:
        place.close()
        if server.running:
            server.drop_database(name)
