"""A simulated process: its event loops, and whether it runs, is paused or is dead."""

from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any

from simulation.clock import Clock
from simulation.loop import VirtualLoop

Record = Callable[..., None]


class Process:
    """One life of a process. A restart is another object with the next number.

    `main` runs the application, `lease` what a thread of it runs: the renewal of a lease. Nothing runs after `kill`, not
    even `finally` blocks.
    """

    def __init__(self, name: str, clock: Clock, numbers: "count[int]", record: Callable[..., None]) -> None:
        self.name, self._clock, self._record = name, clock, record
        self.alive, self.ended = True, False
        self.operations = 0
        """Store operations so far: with the name they are the address of a fault."""
        self.locks: set[object] = set()
        """The database locks that it holds or waits for."""
        self._paused_until = self._main_paused_until = 0.0
        self.on_end: Callable[[], None] = lambda: None
        self.main, self.lease = (VirtualLoop(clock, self, numbers) for _ in range(2))  # type: ignore[abstract]

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs the program of this process."""
        self.main.create_task(coroutine).add_done_callback(self._on_done)

    def record(self, event: str, **fields: object) -> None:
        self._record(self.name, event, fields)

    def pause(self, seconds: float, *, only_main: bool = False) -> None:
        """Stops it for a time; with `only_main` its lease is still renewed, as if a handler blocked the event loop."""
        self.record("blocked" if only_main else "paused", seconds=round(seconds, 3))
        if only_main:
            self._main_paused_until = self._clock.seconds + seconds
        else:
            self._paused_until = self._clock.seconds + seconds

    @property
    def is_paused(self) -> bool:
        return self._paused_until > self._clock.seconds

    def kill(self) -> None:
        self.alive = False
        self.record("killed")

    def add_due(self, found: list[tuple[float, VirtualLoop]]) -> None:
        """Adds the loops that have something to do, each with its time. Called before each turn, so it makes no list."""
        if not self.alive:
            return
        main, lease, paused = self.main.due_at(), self.lease.due_at(), self._paused_until
        if main is not None:
            if paused > main or self._main_paused_until > main:
                main = max(paused, self._main_paused_until)
            found.append((main, self.main))
        if lease is not None:
            found.append((lease if lease > paused else paused, self.lease))

    def _on_done(self, task: Any) -> None:
        self.ended = True
        if not task.cancelled() and (error := task.exception()) is not None:
            self.record("process failed", error=repr(error))
