"""One store with all processes around it: workers, the client, the HTTP server, brokers, the receiver; ended ones restart."""

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from chaos.application import LIMIT, build
from chaos.brokers import LabBroker, RelayTarget, start_brokers
from chaos.journal import Journal
from chaos.receiver import Receiver
from chaos.stores import StoreUnderTest, opened
from tests.engine.programs.place import Process, until
from tests.servers.process import free_port

LOADS = (
    *("publish", "work", "complete", "webhooks", "http", "relay", "rebuild", "limits", "workflows"),
    *("redis", "nats", "rabbitmq", "kafka"),
)
LEASE = 2.0
START_SECONDS = 60.0
_INTERVAL = 0.1
_SAMPLE_SECONDS = 0.15


class Supervised:
    """A process that is started again when it ends, as a supervisor does."""

    def __init__(self, name: str, start: Callable[[], Process], *, until_success: bool = False) -> None:
        self.name, self._start = name, start
        self._until_success = until_success
        self.process = start()
        self.restarts = 0

    def check(self) -> None:
        code = self.process.code
        if code is not None and not (self._until_success and code == 0):
            self.restarts += 1
            self.process = self._start()


class Laboratory:
    """Everything that runs during the scenarios of one store. Use it as a context manager."""

    def __init__(self, store: str, loads: tuple[str, ...], directory: Path, seed: int) -> None:
        self.loads = loads
        self.random = random.Random(seed)
        self.journal = Journal(directory / "journal")
        self.directory = directory
        self.most_limited = 0
        self.missing: dict[str, str] = {}
        self._store_name = store
        self._stack = ExitStack()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.rebuild: Supervised | None = None
        self.brokers: list[LabBroker] = []
        self.relay: RelayTarget | None = None
        self.programs: dict[str, Supervised] = {}
        self.store: StoreUnderTest
        self.receiver: Receiver

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.store = stack.enter_context(opened(self._store_name, self.directory))
            self.receiver = Receiver(self.journal)
            stack.callback(self.receiver.close)
            self.brokers, self.relay, self.missing = start_brokers(self.loads, stack)
            self.loads = tuple(load for load in self.loads if load not in self.missing)
            self._start_programs()
            stack.callback(self._close)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def workers(self) -> list[Supervised]:
        return [one for name, one in self.programs.items() if name.startswith("worker")]

    def worker(self, environment: dict[str, str] | None = None) -> Process:
        """Starts one more worker, which nothing restarts."""
        options = ("--lease", f"{LEASE:g}s", "--grace", "5s", "--concurrency", "8")
        return self._program("holdfast", "worker", "--app", "chaos.application:hf", *options, environment=environment)

    def start_rebuild(self) -> None:
        """A rebuild for this window; it is repeated until it succeeds."""
        if "rebuild" in self.loads:
            if self.rebuild is not None:
                self.rebuild.process.kill()  # one that did not end in its window
            self.rebuild = Supervised("rebuild", lambda: self._program("chaos.rebuilding"), until_success=True)

    @property
    def is_rebuilt(self) -> bool:
        return self.rebuild is None or self.rebuild.process.code == 0

    def describe(self) -> str:
        """The end of what the processes printed, and what is not finished."""
        return f"{self.store.statuses()}\n{self.store.logs()}"

    def _start_programs(self) -> None:
        http_port = free_port()
        self._settings = {
            "CHAOS_JOURNAL": str(self.journal.directory),
            "CHAOS_LOADS": ",".join(self.loads),
            "CHAOS_INTERVAL": str(_INTERVAL),
            "CHAOS_HTTP_PORT": str(http_port),
            "HOLDFAST_LOG_LEVEL": "warning",
        }
        for broker in self.brokers:
            self._settings |= broker.environment
        if "webhooks" in self.loads:
            hf, _ = build(self.store.dsn, (), self.journal)
            hf.webhooks.sync.add(self.receiver.url, events=["chaos.webhooks"], conn=None)
            hf.store.close_sync()
        # On SQLite one process runs the engine.
        for number in range(1 if self.store.on_sqlite else 2):
            self.programs[f"worker-{number}"] = Supervised(f"worker-{number}", self.worker)
        if "http" in self.loads:
            self.programs["http"] = Supervised("http", lambda: self._program("chaos.http_server", str(http_port)))
        self.programs["client"] = Supervised("client", lambda: self._program("chaos.client"))
        for work in (self._supervise, self._sample):
            threading.Thread(target=work, daemon=True).start()
        for broker in self.brokers:
            if broker.name in self.loads:
                threading.Thread(target=broker.produce, args=(self.journal, self._closing), daemon=True).start()
        until(lambda: len(self.store.sql("select 1 from {hf}worker")) >= len(self.workers), "no worker", START_SECONDS)

    def _program(self, module: str, *arguments: str, environment: dict[str, str] | None = None) -> Process:
        with self._lock:
            return self.store.program(
                module,
                *arguments,
                dsn=self.store.client_dsn,
                environment={**self._settings, **(environment or {})},
            )

    def _supervise(self) -> None:
        while not self._closing.wait(0.2):
            for one in [*self.programs.values(), *([self.rebuild] if self.rebuild else [])]:
                one.check()

    def _sample(self) -> None:
        """How many deliveries of the limited consumer are in flight at the same time, at most."""
        query = "select count(*) from {hf}delivery where consumer = 'limits' and status = 'in_flight'"
        sampled = StoreUnderTest("sample", self.store.dsn, self.directory, None)
        while not self._closing.wait(_SAMPLE_SECONDS):
            try:
                self.most_limited = max(self.most_limited, int(sampled.one(query)))
            except (psycopg.Error, OSError):
                continue  # the fault strikes this connection, too
        sampled.close()

    @property
    def limit_exceeded(self) -> bool:
        return self.most_limited > LIMIT

    def _close(self) -> None:
        self._closing.set()
        time.sleep(0.3)
