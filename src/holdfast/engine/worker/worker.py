"""The worker: claims due deliveries, runs and settles them, and takes over those of dead workers.

A worker runs one session after another. Each session has an instance id and a lease. If the lease may have expired, the
session ends, its handlers are stopped, and the next session starts.
"""

import asyncio
import contextlib
import time

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.telemetry.log_fields import error_fields
from holdfast.engine.worker.control import WorkerControl
from holdfast.engine.worker.deps import WorkerDeps
from holdfast.engine.worker.options import WorkerOptions
from holdfast.engine.worker.periodic import first
from holdfast.engine.worker.session import WorkerSession

log = get_logger("holdfast.worker")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0
_REGISTRATION = 1.0
"""Seconds that a worker that is stopped waits for its registration to end; at most a third of the grace."""


class Worker:
    """Runs handlers until it is stopped; it has no open transaction while a handler runs."""

    def __init__(self, deps: WorkerDeps, options: WorkerOptions) -> None:
        self._deps, self._options = deps, options
        self._control = WorkerControl()
        self._stop_requested = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def stopping(self) -> asyncio.Event:
        """Set once it claims no more work."""
        return self._control.stop

    @property
    def force_stop(self) -> asyncio.Event:
        """Set once it no longer waits for handlers."""
        return self._control.force_stop

    def has_one_slot(self, *queues: str | None) -> bool:
        """Whether deliveries of these queues share one slot of this worker, so that one cannot wait for another."""
        slots = self._options.queues
        return (
            self._options.concurrency == 1
            if slots is None
            else len(set(queues)) == 1 and slots.get(str(queues[0])) == 1
        )

    def stop(self) -> None:
        """Stops claiming and drains; a second call stops waiting for handlers. Safe in a signal handler."""
        if self._stop_requested:
            self._control.force_stop.set()
        self._stop_requested = True
        self._control.end()

    def drain(self) -> None:
        """Stops claiming and lets running handlers finish."""
        self._control.end()

    def wake(self) -> None:
        """Wakes the worker, because there may be work. Safe from any thread."""
        if self._loop is not None:
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._control.wake.set()
        self._deps.woken()

    async def run(self) -> None:
        """Works until stopped, or until idle if the options say so. While the store is unavailable, it waits."""
        self._loop = asyncio.get_running_loop()
        listening = asyncio.create_task(self._listen(), name="holdfast-changes")
        try:
            await self._run_sessions()
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            await self._deps.alerts.sent()

    async def _listen(self) -> None:
        """Wakes the worker on notifications until it stops.

        A listener that receives nothing takes up to a second to cancel.
        """
        changes = asyncio.create_task(self._deps.store.changes(self._woken))
        try:
            await first(changes, self._control.stop.wait())
        finally:
            changes.cancel()
            (error,) = await asyncio.gather(changes, return_exceptions=True)
            if isinstance(error, Exception):
                log.error("notification listener failed", **error_fields(error))

    async def _run_sessions(self) -> None:
        pause = _SHORTEST_PAUSE
        while not self._control.stop.is_set():
            session = WorkerSession(self._deps, self._options, self._control)
            registering = asyncio.create_task(session.register())
            try:
                await first(registering, self._control.stop.wait())
                # A row that is created anyway would be listed as alive until its lease expires: the session removes it.
                patience = min(_REGISTRATION, self._options.grace.total_seconds() / 3)
                await first(registering, self._control.force_stop.wait(), until=time.monotonic() + patience)
            finally:
                # A row that is created still later holds no deliveries, and its lease expires.
                registering.cancel()
            if not registering.done():
                return
            try:
                registering.result()
            except StoreUnavailable as error:
                # It is unknown whether this instance was registered; the next session has another id.
                log.warning("store unavailable", worker=session.id, task="register", error=str(error))
                self._control.wake.clear()
                await self._control.woken(pause)
                pause = min(pause * 2, _LONGEST_PAUSE, self._options.lease.total_seconds() / 4)
                continue
            pause = _SHORTEST_PAUSE
            await session.run()
