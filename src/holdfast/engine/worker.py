"""The worker: claims what is due, runs it, settles it, and takes over what dead workers left.

A worker lives one or more lives. In each it has an instance id and a lease of its own; when the lease cannot be
known to hold, that life ends, its handlers are stopped, and a new one begins.
"""

import asyncio
import contextlib

from holdfast._log import get_logger
from holdfast.core.errors import StoreUnavailable
from holdfast.engine.fields import raised
from holdfast.engine.life import Life
from holdfast.engine.options import WorkerOptions
from holdfast.engine.periodic import first
from holdfast.engine.signals import Signals
from holdfast.engine.surroundings import Surroundings

log = get_logger("holdfast.worker")

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.05, 5.0


class Worker:
    """Runs handlers until told to stop; never holds a transaction open while one runs."""

    def __init__(self, around: Surroundings, options: WorkerOptions) -> None:
        self._around, self._options = around, options
        self._signals = Signals()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def stopping(self) -> asyncio.Event:
        """Set once it takes no more work."""
        return self._signals.stop

    @property
    def hurry(self) -> asyncio.Event:
        """Set once it was told not to wait for handlers."""
        return self._signals.hurry

    def stop(self) -> None:
        """Takes no more work and drains; called twice, it stops waiting for handlers. Safe in a signal handler."""
        if self._signals.stop.is_set():
            self._signals.hurry.set()
        self._signals.end()

    def wake(self) -> None:
        """There may be work. Safe from any thread."""
        if self._loop is not None:
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._signals.wake.set()
        self._around.woken()

    async def run(self) -> None:
        """Works until stopped, or until idle if so asked. Outages of the store are waited out."""
        self._loop = asyncio.get_running_loop()
        changes = asyncio.create_task(self._around.store.changes(self._woken), name="holdfast-changes")
        try:
            await self._live()
        finally:
            changes.cancel()
            (error,) = await asyncio.gather(changes, return_exceptions=True)
            if isinstance(error, Exception):
                log.error("notification listener failed", **raised(error))
            await self._around.alerts.sent()

    async def _live(self) -> None:
        pause = _SHORTEST_PAUSE
        while not self._signals.stop.is_set():
            life = Life(self._around, self._options, self._signals)
            announcing = asyncio.create_task(life.announce())
            try:
                await first(announcing, self._signals.stop.wait())
            finally:
                # A row that is made all the same holds nothing, and its lease runs out.
                announcing.cancel()
            if not announcing.done():
                return
            try:
                announcing.result()
            except StoreUnavailable as error:
                # Whether this instance was announced is not known; the next life has another id.
                log.warning("store unavailable", worker=life.id, task="register", error=str(error))
                self._signals.wake.clear()
                await self._signals.woken(pause)
                pause = min(pause * 2, _LONGEST_PAUSE, self._options.lease.total_seconds() / 4)
                continue
            pause = _SHORTEST_PAUSE
            await life.run()
