"""Progress of running handlers: collected in memory, written about once a second for all runs of a worker."""

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING
from uuid import UUID

from holdfast._log import get_logger
from holdfast.core.change import Change, Deliver
from holdfast.core.progress import stored_note
from holdfast.core.redaction.redact import hidden, redacted
from holdfast.stores.deliveries.progress import ReportedProgress, forget_progress, report_progress
from holdfast.stores.protocol import Store

if TYPE_CHECKING:
    # They import this module.
    from holdfast.engine.handlers.context import Context
    from holdfast.engine.settlement.settler import Ack

log = get_logger("holdfast.worker")

_INTERVAL = 1.0


class RunProgress:
    """The latest report of a run. `is_written`: there may be a row, which must be removed once the run is delivered."""

    __slots__ = ("fraction", "hide", "is_ended", "is_written", "note", "run")

    def __init__(self, run: tuple[UUID, int]) -> None:
        self.run = run
        self.fraction = 0.0
        self.note: str | None = None
        self.hide: Callable[[str], str] | None = None
        self.is_written = self.is_ended = False

    def row(self) -> ReportedProgress:
        """The report as it is stored: without the secrets of its message."""
        note = None if self.note is None else stored_note(redacted(self.note, self.hide))
        return ReportedProgress(*self.run, self.fraction, note)


class ProgressWriter:
    """Writes the latest report of each run, at most once per interval, in one statement for all runs of a worker.

    The renewal of the lease does not write it: that is too rare for a progress bar, and must not get slower. A report is a hint: one
    that cannot be written is dropped. The fence decides whether a run may write.
    """

    def __init__(self, store: Store, worker: str) -> None:
        self._store, self._worker = store, worker
        self._loop = asyncio.get_running_loop()
        # Handlers report from threads too.
        self._lock = threading.Lock()
        self._pending: dict[tuple[UUID, int], RunProgress] = {}
        self._delivered: list[tuple[UUID, int]] = []
        self._is_scheduled = False
        self._task: asyncio.Task[None] | None = None

    def report(self, context: "Context", fraction: float, note: str | None) -> None:
        """Takes a report; it is written at once if none was written in the last second. Safe from any thread."""
        with self._lock:
            one = context.reported
            if one is None:
                one = context.reported = RunProgress((context.delivery_id, context.fence))
            if one.is_ended:
                # A thread that continues after its time-out.
                return
            one.fraction, one.note, one.hide = fraction, note, hidden()
            self._pending[one.run] = one
            self._schedule()

    def settlement(self, reported: RunProgress, change: Change, ack: "Ack") -> "Ack":
        """The settlement of a run that reported: its row is removed once it is durably delivered, and stays otherwise."""
        if not isinstance(change, Deliver):
            with self._lock:
                reported.is_ended = True
            return ack
        written = ack.written

        def ended() -> None:
            self.delivered(reported)
            if written is not None:
                written()

        with self._lock:
            reported.is_ended = True
            self._pending.pop(reported.run, None)
        return ack._replace(written=ended) if reported.is_written else ack

    def delivered(self, reported: RunProgress) -> None:
        """Removes the row of a run that is delivered, with the next write."""
        with self._lock:
            reported.is_ended = True
            self._pending.pop(reported.run, None)
            if not reported.is_written:
                return
            self._delivered.append(reported.run)
            self._schedule()

    async def flush(self) -> None:
        """Writes what was reported, and removes the rows of delivered runs."""
        with self._lock:
            pending, self._pending = self._pending, {}
            delivered, self._delivered = self._delivered, []
            for one in pending.values():
                one.is_written = True
            rows = [one.row() for one in pending.values()]
        try:
            if rows:
                await self._store.run(report_progress(rows))
            if delivered:
                # After the write: the row of a run that ends during the write is removed by the next flush.
                await self._store.run(forget_progress(delivered))
        except Exception as error:  # noqa: BLE001
            log.warning("progress not written", worker=self._worker, runs=len(rows), error=str(error))

    def close(self) -> None:
        """Ends the writing; what is not written is dropped."""
        if self._task is not None:
            self._task.cancel()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._start)

    def _start(self) -> None:
        # An empty context: the log lines of the writer are not about the run that reported first.
        self._task = self._loop.create_task(self._write(), name="holdfast-progress", context=contextvars.Context())

    async def _write(self) -> None:
        while True:
            await self.flush()
            await asyncio.sleep(_INTERVAL)
            with self._lock:
                if not self._pending and not self._delivered:
                    self._is_scheduled = False
                    return
