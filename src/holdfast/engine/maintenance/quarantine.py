"""Runs suspect deliveries, which may crash their worker, one at a time in a child process: other deliveries are safe."""

import subprocess
import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

from holdfast._log import get_logger
from holdfast.engine.worker.parent_watchdog import child_environment
from holdfast.stores.deliveries.claim import lanes
from holdfast.stores.protocol import Store

log = get_logger("holdfast.quarantine")

_LONGEST_PAUSE = 30.0


class QuarantineRunner:
    """Keeps a child worker running while there are suspect deliveries, and restarts it after a crash.

    The child is an ordinary worker with its own lease. The delivery that crashes it is taken over like those of any dead
    worker, and becomes a dead letter when its attempts are used up.
    """

    interval = timedelta(seconds=1)

    def __init__(
        self,
        store: Store,
        consumers: Collection[str],
        generation: int,
        queues: Sequence[str] | None,
        command: Callable[[], Sequence[str] | None],
    ) -> None:
        self._store, self._command = store, command
        self._consumers, self._generation, self._queues = consumers, generation, queues
        self._child: subprocess.Popen[bytes] | None = None
        self._pause, self._not_before = 0.0, 0.0

    async def perform(self, worker: str) -> None:
        if self._child is not None:
            code = self._child.poll()
            if code is None:
                return
            self._child = None
            if code != 0:
                # Its delivery crashed it, and is due again only when the lease expires: a pause delays nothing.
                self._pause = min(self._pause * 2 or 0.5, _LONGEST_PAUSE)
                self._not_before = time.monotonic() + self._pause
                log.error("quarantine process died", exit_code=code, worker=worker)
            else:
                self._pause = 0.0
        if time.monotonic() < self._not_before:
            return
        found = await self._store.run(
            lanes(sorted(self._consumers), self._generation, queues=self._queues, suspects=True)
        )
        if not found:
            return
        command = self._command()
        if command is None:
            log.error(
                "quarantine unavailable",
                worker=worker,
                hint="a child process cannot import this app; run `holdfast worker --app module:attribute`",
            )
            return
        self._child = subprocess.Popen(command, close_fds=False, env=child_environment())  # noqa: S603, ASYNC220
        log.warning("quarantine process started", pid=self._child.pid, worker=worker)

    def stop(self) -> None:
        """Stops the child and waits for it; after ten seconds it is killed."""
        if self._child is None:
            return
        self._child.terminate()
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._child = None
