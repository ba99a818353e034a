"""Stops a worker that has run its number of deliveries or uses too much memory, so that a fresh process replaces it."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from holdfast._log import get_logger
from holdfast.core.errors import ConfigurationError
from holdfast.engine.telemetry.meter import Meter
from holdfast.engine.worker.options import WorkerOptions

log = get_logger("holdfast.worker")


def memory_in_use() -> int | None:
    """The resident memory of this process in bytes; None where the system has no cheap way to read it."""
    if sys.platform != "linux":
        return None
    resident_pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(resident_pages) * os.sysconf("SC_PAGE_SIZE")


def check_memory(options: WorkerOptions) -> None:
    """Raises `ConfigurationError` if the memory limit cannot be checked, or is already exceeded before the first delivery."""
    if options.max_memory is None:
        return
    used = memory_in_use()
    if used is None:
        raise ConfigurationError("max_memory needs Linux; use max_deliveries on this system")
    if used >= options.max_memory:
        raise ConfigurationError(
            f"max_memory is {_megabytes(options.max_memory)}, and the app uses {_megabytes(used)} before its first "
            "delivery; give at least twice as much"
        )


class ProcessLimits:
    """Checks the limits of a worker several times a second."""

    interval = timedelta(seconds=0.25)

    def __init__(self, meter: Meter, options: WorkerOptions, stop: Callable[[], None]) -> None:
        check_memory(options)
        self._meter, self._options, self._stop = meter, options, stop
        self._settled_before = meter.settled_count
        self._stopped = False

    async def perform(self, worker: str) -> None:
        """Stops the worker once if a limit is reached: it claims no more and lets running handlers finish."""
        if not self._stopped and (reason := self._reason()) is not None:
            self._stopped = True
            log.info("worker recycling", worker=worker, reason=reason)
            self._stop()

    def _reason(self) -> str | None:
        limit, settled = self._options.max_deliveries, self._meter.settled_count - self._settled_before
        if limit is not None and settled >= limit:
            return f"it settled {settled:,} deliveries; the limit is {limit:,}"
        if self._options.max_memory is not None:
            used = memory_in_use()
            if used is not None and used >= self._options.max_memory:
                return f"it uses {_megabytes(used)} of memory; the limit is {_megabytes(self._options.max_memory)}"
        return None


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:,.0f} MB"
