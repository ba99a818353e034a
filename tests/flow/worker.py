"""The consumers of the soak runs, one for each kind of flow control, and worker processes that can be killed.

Workers are forked from a process that has imported everything, so that hundreds can be started and killed.
"""

import asyncio
import ctypes
import multiprocessing
import os
import random
import signal
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast import BatchError, Holdfast, Limit, Queue, Rate, RetryPolicy, TerminalError, WorkerOptions
from tests.engine.programs.place import until
from tests.flow.log import Database
from tests.flow.oracle import Promise

if TYPE_CHECKING:
    from tests.stores.mutation import Mutant

EVENT = "order.placed"
HELD, MOVED, COUNTED, SHARED, QUEUED = "slot.held", "order.moved", "call.counted", "work.shared", "work.queued"
WORKERS = 3
SLOTS = 10
LEASE = 1.0
_RETRY = RetryPolicy.fixed(attempts=200, delay="20ms")

PROMISES: Mapping[str, Promise] = {
    "all_limited": Promise(limit=4),
    "key_limited": Promise(limit=2, limit_by_key=True),
    "mail_a": Promise(),
    "mail_b": Promise(),
    "all_rated": Promise(rate=(60, 500)),
    "key_rated": Promise(rate=(15, 500), rate_by_key=True),
    "blocked": Promise(order="block"),
    "skipped": Promise(order="skip"),
    "both": Promise(order="block", limit=3),
    "fair": Promise(fair=100),
    "debounced": Promise(debounce=(150, 800)),
    "batched": Promise(batch=(10, 200)),
}
QUEUES = {"mail": 3}


async def handle(payload: Any) -> None:
    """Takes some time; fails now and then, rarely without a retry."""
    await asyncio.sleep(random.uniform(0, 0.01))
    chance = random.random()
    if chance < 0.01:
        raise TerminalError("declined")
    if chance < 0.08:
        raise RuntimeError("again")


async def hold(payload: Any) -> None:
    """Takes the time that its message says."""
    await asyncio.sleep(payload.get("seconds", 0.0))


async def move(payload: Any) -> None:
    """Fails sometimes; one in two thousand becomes a dead letter."""
    chance = random.random()
    if chance < 0.0005:
        raise TerminalError("declined")
    if chance < 0.02:
        raise RuntimeError("again")


async def handle_many(payloads: list[dict[str, Any]]) -> None:
    await asyncio.sleep(random.uniform(0, 0.01))
    if failed := {n: RuntimeError("again") for n in range(len(payloads)) if random.random() < 0.05}:
        raise BatchError(failed)


def build(dsn: str) -> Holdfast:
    """The app with one consumer for each promise."""
    app = Holdfast(dsn, queues=[Queue("mail", limit=Limit(QUEUES["mail"]))])
    options: dict[str, dict[str, Any]] = {
        "all_limited": {"limit": Limit(4)},
        "key_limited": {"limit": Limit(2, by="k")},
        "mail_a": {"queue": "mail"},
        "mail_b": {"queue": "mail"},
        "all_rated": {"rate": Rate("60/500ms")},
        "key_rated": {"rate": Rate("15/500ms", by="k")},
        "blocked": {"order_by": "k", "on_dead": "block"},
        "skipped": {"order_by": "k", "on_dead": "skip"},
        "both": {"order_by": "k", "limit": Limit(3)},
        "fair": {"fair_by": "k"},
        "debounced": {"debounce": "150ms", "max_wait": "800ms", "by": "k"},
    }
    for name, given in options.items():
        app.consumer(EVENT, name=name, retry=_RETRY, **given)(handle)
    app.consumer(EVENT, name="batched", retry=_RETRY, batch=10, within="200ms")(handle_many)
    app.consumer(HELD, name="held_all", retry=_RETRY, limit=Limit(4))(hold)
    app.consumer(HELD, name="held_key", retry=_RETRY, limit=Limit(2, by="k"))(hold)
    app.consumer(MOVED, name="moved_block", retry=_RETRY, order_by="k", on_dead="block")(move)
    app.consumer(MOVED, name="moved_skip", retry=_RETRY, order_by="k", on_dead="skip")(move)
    app.consumer(COUNTED, name="counted", retry=_RETRY, rate=Rate("100/1s"))(hold)
    app.consumer(SHARED, name="shared", retry=_RETRY, fair_by="k")(hold)
    app.consumer(QUEUED, name="queued", retry=_RETRY)(hold)
    return app


class Workers:
    """Worker processes on one database. They are forked, and end with this process."""

    def __init__(
        self,
        dsn: str,
        count: int = WORKERS,
        *,
        slots: int = SLOTS,
        lease: float = LEASE,
        sabotage: Sequence["Mutant"] = (),
        quarantine: bool = False,
    ) -> None:
        """With `sabotage`, the workers run with these mutations of statements. With `quarantine`, one forked process, which
        is not killed, runs all suspect deliveries: hundreds of workers that are killed would each start a new interpreter."""
        self._dsn, self._count, self._slots, self._lease = dsn, count, slots, lease
        self._sabotage, self._has_quarantine = sabotage, quarantine
        self._quarantine: list[BaseProcess] = []
        self.processes: list[BaseProcess] = []

    async def __aenter__(self) -> "Workers":
        self.processes = [self._start() for _ in range(self._count)]
        self._quarantine = [self._start(suspects=True)] if self._has_quarantine else []
        return self

    async def __aexit__(self, *_: object) -> None:
        for process in [*self.processes, *self._quarantine]:
            _kill(process)

    async def registered(self, database: Database) -> None:
        """Waits until every worker has started."""

        def all_started() -> bool:
            return len(database.sql("select 1 from {hf}worker")) >= self._count + self._has_quarantine

        await asyncio.to_thread(until, all_started, "the workers do not start")

    def replace(self, random: random.Random, among: Collection[int | None] | None = None) -> int | None:
        """Kills one of the workers, or of those `among` them, with SIGKILL and starts another; returns the one it killed."""
        victim = random.choice([one for one in self.processes if among is None or one.pid in among])
        _kill(victim)
        self.processes.remove(victim)
        self.processes.append(self._start())
        return victim.pid

    def _start(self, *, suspects: bool = False) -> BaseProcess:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.flow.worker"])
        seconds, poll = timedelta(seconds=self._lease), timedelta(milliseconds=50)
        options = WorkerOptions(lease=seconds, poll=poll, concurrency=self._slots, cron=False, suspects=suspects)
        given = self._dsn, options, self._sabotage, not self._has_quarantine
        process = context.Process(target=_work, args=given, daemon=True)
        process.start()
        return process


def _kill(process: BaseProcess) -> None:
    process.kill()
    process.join()


def _work(dsn: str, options: WorkerOptions, sabotage: Sequence["Mutant"], importable: bool) -> None:
    """Runs a worker. One whose app is not importable cannot start a process for suspect deliveries."""
    global hf
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # a test that is aborted leaves no worker behind
    os.environ["HOLDFAST_DSN"] = dsn
    if dsn.startswith("sqlite"):
        os.environ["HOLDFAST_ENGINE_FAMILY"] = f"{dsn.removeprefix('sqlite:///')}-engine"
    os.environ["HOLDFAST_LOG_LEVEL"] = "error"
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    app = build(dsn)
    if importable:
        hf = app
    with ExitStack() as mutated:
        if sabotage:
            from tests.stores.mutation import applied  # it imports pytest, which other workers do not need

            for mutant in sabotage:
                mutated.enter_context(applied(app.store, mutant))
        app.run(options=options)


if "HOLDFAST_DSN" in os.environ:  # the child process of a worker, for suspect deliveries
    hf = build(os.environ["HOLDFAST_DSN"])
