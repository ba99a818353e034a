"""Waits for deliveries and runs to end, in any process: one thread and one query for all callers that wait here."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, InvalidStateError
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.drive import drive, drive_async
from holdfast.core.errors import StoreUnavailable
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.stores.deliveries.result import awaited_deliveries
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store, Topic
from holdfast.stores.workflows.run import active_runs

log = get_logger("holdfast.results")

T = TypeVar("T")

_SHORTEST_POLL, _LONGEST_POLL = 0.05, 1.0
_EVERY = 0.02
"""The shortest time between two queries, in seconds; more notifications do not shorten it."""
_LINGER = 5.0
"""Seconds for which the listener stays open after the last wait."""


class Subject(StrEnum):
    """The kind of item that a caller waits for."""

    DELIVERY = "delivery"
    RUN = "run"


_UNFINISHED: dict[Subject, Callable[[Iterable[UUID]], Operation[frozenset[UUID]]]] = {
    Subject.DELIVERY: awaited_deliveries,
    Subject.RUN: active_runs,
}


class Completion(NamedTuple):
    """A request to wait until the subject has ended or does not exist, at most for `seconds`; the reply says whether it did."""

    subject: Subject
    id: UUID
    seconds: float | None


Waits = Generator[Any, Any, T]
"""Yields operations of the store and `Completion` requests."""


class Deadline:
    """The time at which a caller stops waiting."""

    def __init__(self, timeout: Duration | None) -> None:
        self._ends = (
            None if timeout is None else time.monotonic() + to_timedelta(timeout, name="timeout").total_seconds()
        )

    @property
    def left(self) -> float | None:
        """Seconds that are left; None without a time-out."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())


def _refuse_in_loop() -> None:
    """A blocking wait would stop the event loop of this thread, and with it a worker that runs there."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise TypeError("sync.result() blocks and an event loop is running here; use `await ….result()`, without .sync")


class CompletionWatcher:
    """Finds out when deliveries and runs have ended. Its thread exists only while a caller waits.

    A notification of a worker wakes it, and an interval that grows to a second replaces notifications that are lost.
    One query covers everything that callers of this process wait for.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._waiting: dict[tuple[Subject, UUID], set[Future[bool]]] = {}
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken: asyncio.Event | None = None
        self._poll = _SHORTEST_POLL
        self._closing = False

    async def run(self, steps: Waits[T]) -> T:
        """Performs the requests of a caller in an event loop."""

        async def perform(request: Any) -> Any:
            if not isinstance(request, Completion):
                return await self._store.run(request)
            if request.seconds == 0:
                return False
            with self._watch(request) as ended:
                waiting = asyncio.wrap_future(ended)
                done, _ = await asyncio.wait({waiting}, timeout=request.seconds)
                return bool(done) and waiting.result()

        return await drive_async(steps, perform)

    def run_sync(self, steps: Waits[T]) -> T:
        """`run`, blocking."""

        def perform(request: Any) -> Any:
            if not isinstance(request, Completion):
                return self._store.run_sync(request)
            if request.seconds == 0:
                return False
            _refuse_in_loop()
            with self._watch(request) as ended:
                try:
                    return ended.result(request.seconds)
                except TimeoutError:
                    return False

        return drive(steps, perform)

    def wake(self) -> None:
        """Something may have ended. Safe from any thread."""
        loop, woken = self._loop, self._woken
        if loop is not None and woken is not None:
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(woken.set)

    def close(self) -> None:
        """Ends the thread, and with `StoreUnavailable` the waits. Blocking for a short time."""
        with self._lock:
            thread, self._closing = self._thread, True
        if thread is not None and self._process == os.getpid():
            self.wake()
            thread.join(_LINGER)
        self._closing = False

    @contextlib.contextmanager
    def _watch(self, request: Completion) -> Generator["Future[bool]", None, None]:
        ended: Future[bool] = Future()
        key = (request.subject, request.id)
        with self._lock:
            if self._process != os.getpid():
                # A forked child has no thread.
                self._forget()
            self._waiting.setdefault(key, set()).add(ended)
            self._poll = _SHORTEST_POLL
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="holdfast-results", daemon=True)
                self._thread.start()
        self.wake()
        try:
            yield ended
        finally:
            with self._lock:
                waiting = self._waiting.get(key, set())
                waiting.discard(ended)
                if not waiting:
                    self._waiting.pop(key, None)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001
            log.error("result listener failed", **error_fields(error))
            self._end(error)

    async def _serve(self) -> None:
        self._woken = woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        listening = asyncio.create_task(self._store.changes(woken.set, Topic.RESULTS))
        try:
            while not self._closing:
                woken.clear()
                with self._lock:
                    wanted = list(self._waiting)
                if wanted:
                    self._check(wanted)
                elif await _quiet(woken, _LINGER) and self._stop_if_idle():
                    return
                if await _quiet(woken, self._poll):
                    self._poll = min(self._poll * 1.5, _LONGEST_POLL)
                else:
                    await asyncio.sleep(_EVERY)
            self._end(StoreUnavailable(self._store.name, "the app was closed"))
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    def _check(self, wanted: list[tuple[Subject, UUID]]) -> None:
        for subject, operation in _UNFINISHED.items():
            ids = [id for kind, id in wanted if kind is subject]
            if not ids:
                continue
            try:
                left = self._store.run_sync(operation(ids))
            except StoreUnavailable as error:
                log.warning("store unavailable", task="results", error=str(error))
                return
            with self._lock:
                for id in set(ids) - left:
                    for ended in self._waiting.get((subject, id), ()):
                        _resolve(ended, None)

    def _stop_if_idle(self) -> bool:
        with self._lock:
            if self._waiting:
                return False
            self._thread = self._loop = self._woken = None
            return True

    def _end(self, error: Exception) -> None:
        with self._lock:
            self._thread = self._loop = self._woken = None
            for waiting in self._waiting.values():
                for ended in waiting:
                    _resolve(ended, error)


async def _quiet(woken: asyncio.Event, seconds: float) -> bool:
    """Whether nothing woke the watcher for `seconds`."""
    try:
        async with asyncio.timeout(seconds):
            await woken.wait()
    except TimeoutError:
        return True
    return False


def _resolve(ended: "Future[bool]", error: Exception | None) -> None:
    # The caller may have given up.
    with contextlib.suppress(InvalidStateError):
        if error is None:
            ended.set_result(True)
        else:
            ended.set_exception(error)
