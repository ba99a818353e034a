"""Named crash points between every two durable steps, and markers to wait at. Nothing of this is in the product.

A program calls `install()` once. With `HOLDFAST_TEST_CRASH=claim.uncommitted@3` in its environment the process then
kills itself the third time it comes to that point, as SIGKILL from outside would. `uncommitted` is after the statement
and before its COMMIT, `committed` is right after that; a statement that commits alone is put into a
transaction first, so that there is such a moment.
"""

import importlib
import os
import signal
import threading
import time
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import holdfast.stores.sqlite.store
from holdfast.stores.operation import Operation
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.concurrency.query_hook import before_each_query

_OPERATIONS = {
    "start_worker": "announce",
    "claim": "claim",
    "discover_and_claim": "claim",
    "claim_batch": "claim",
    "claim_debounced": "claim",
    "settle": "settle",
    "settle_delivered": "settle",
    "remove_deliveries": "settle",
    "rescue": "rescue",
    "renew_worker": "renew",
    "catch_up_advance": "catch_up",
    "due_schedules": "schedules",
    "advance_schedules": "fire",
    "end_schedules": "fire",
    "publish": "publish",
    "publish_one": "publish",
    "publish_alike": "publish",
    "publish_keyed": "publish",
    "stop_worker": "stop",
    "move_position": "mark",
    "decide_stage": "decide",
    "cancel": "cancel",
}
HANDLER_POINTS = ("effect.started", "effect.uncommitted", "effect.completed", "effect.committed", "sink.written")
"""Points that the programs' own handlers come to: before and inside the effect's transaction, and after it."""
WORKER_POINTS = (
    *(
        f"{name}.{when}"
        for name in ("claim", "settle", "rescue", "renew", "catch_up")
        for when in ("uncommitted", "committed")
    ),
    "announce.committed",
    *HANDLER_POINTS,
)
PUBLISHER_POINTS = ("publish.uncommitted", "publish.committed", "order.uncommitted", "order.committed")

_executed: ContextVar[list[str] | None] = ContextVar("executed", default=None)


def directory() -> Path:
    return Path(os.environ["HOLDFAST_TEST_PLACE"])


class _Crash:
    """The one point this process is to die at, or to wait at when the test says `hold:` before its name."""

    def __init__(self, wanted: str) -> None:
        wanted, _, times = wanted.partition("@")
        self.name, self.holds = wanted.removeprefix("hold:"), wanted.startswith("hold:")
        self.left = int(times or 1)
        self._lock = threading.Lock()

    def come(self, name: str) -> None:
        if name != self.name:
            return
        with self._lock:  # no other thread passes the point while this one ends the process
            self.left -= 1
            is_due = self.left == 0
            if is_due and not self.holds:
                (directory() / "markers" / f"crashed.{name}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
                time.sleep(60)  # the signal ends every thread before this does
        if is_due:
            wait_at(name)


_crash = _Crash(os.environ.get("HOLDFAST_TEST_CRASH", ""))


def point(name: str) -> None:
    """Dies here if that was asked for."""
    _crash.come(name)


def wait_at(marker: str) -> None:
    """Reports to the test that this point is reached, and continues when the test allows it."""
    (directory() / "markers" / marker).touch()
    while not allowed(marker):
        time.sleep(0.01)


def allowed(marker: str) -> bool:
    """Whether the test lets programs pass this marker."""
    return (directory() / "markers" / f"{marker}.go").exists()


def install() -> None:
    """Leaves this process's id for the test to end it by, and arms the crash point it is to die at."""
    (directory() / "pids" / str(os.getpid())).touch()
    if not _crash.name:
        return
    _arm_sqlite()
    try:
        _arm_postgres()
    except ImportError:
        return


def _recorded(operation: Operation[Any]) -> Operation[Any]:
    """The operation, which records the statements that it runs."""
    names: list[str] = []
    _executed.set(names)
    return before_each_query(operation, lambda query: names.append(query.name))


def _come(when: str, result: object) -> None:
    executed = _executed.get() or ()
    if "discover_and_claim" in executed and not result:
        # A worker that was woken for nothing has claimed nothing.
        return
    for name in {_OPERATIONS.get(name) for name in executed}:
        if name is not None:
            point(f"{name}.{when}")


def _arm_sqlite() -> None:
    sqlite: Any = holdfast.stores.sqlite.store
    run_on, run_sync = sqlite.run_on, SqliteStore.run_sync

    def recorded(operation: Operation[Any], *connection: Any) -> Any:
        result = run_on(_recorded(operation), *connection)
        _come("uncommitted", result)
        return result

    def run(self: SqliteStore, operation: Operation[Any]) -> Any:
        _executed.set(None)
        result = run_sync(self, operation)
        _come("committed", result)
        return result

    sqlite.run_on = recorded
    SqliteStore.run_sync = run  # type: ignore[method-assign]


def _arm_postgres() -> None:
    postgres: Any = importlib.import_module("holdfast.stores.postgres.store")
    store = postgres.PostgresStore
    run_on, run_on_async, run_sync, run_async = postgres.run_on, postgres.run_on_async, store.run_sync, store.run

    def recorded(operation: Operation[Any], *connection: Any) -> Any:
        result = run_on(_recorded(operation), *connection)
        _come("uncommitted", result)
        return result

    async def recorded_async(operation: Operation[Any], *connection: Any) -> Any:
        result = await run_on_async(_recorded(operation), *connection)
        _come("uncommitted", result)
        return result

    def run(self: Any, operation: Operation[Any]) -> Any:
        _executed.set(None)
        result = run_sync(self, _in_transaction(operation))
        _come("committed", result)
        return result

    async def run_awaiting(self: Any, operation: Operation[Any]) -> Any:
        _executed.set(None)
        result = await run_async(self, _in_transaction(operation))
        _come("committed", result)
        return result

    postgres.run_on, postgres.run_on_async = recorded, recorded_async
    store.run_sync, store.run = run, run_awaiting


def _in_transaction(operation: Operation[Any]) -> Operation[Any]:
    return operation if operation.reads else replace(operation, single=False)
