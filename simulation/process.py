"""A simulated process: its event loops, and whether it runs, is paused or is dead."""

from collections.abc import Callable, Coroutine
from typing import Any

from simulation.loop import Agenda, VirtualLoop

Record = Callable[..., None]


class Dead(BaseException):
    """Ends the code of a process that was killed in a blocking call."""


class Process:
    """One life of a process. A restart is another object with the next number.

    `main` runs the application, `lease` what a thread of it runs: the renewal of a lease. Nothing runs after `kill`, not
    even `finally` blocks.
    """

    def __init__(self, name: str, agenda: Agenda, record: Callable[..., None]) -> None:
        self.name, self._agenda, self._record = name, agenda, record
        self.alive, self.ended = True, False
        self.app: Any = None
        """The app that it runs: handlers are declared once, and find the app of their process here."""
        self.operations = 0
        """Store operations so far: with the name they are the address of a fault."""
        self.locks: set[object] = set()
        """The database locks that it holds or waits for."""
        self.on_end: Callable[[], None] = lambda: None
        self.main, self.lease = (VirtualLoop(agenda, self) for _ in range(2))  # type: ignore[abstract]

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs the program of this process."""
        self.main.create_task(coroutine).add_done_callback(self._on_done)

    def record(self, event: str, **fields: object) -> None:
        self._record(self.name, event, fields)

    def pause(self, seconds: float, *, only_main: bool = False) -> None:
        """Stops it for a time; with `only_main` its lease is still renewed, as if a handler blocked the event loop."""
        self.record("blocked" if only_main else "paused", seconds=round(seconds, 3))
        until = self._agenda.clock.seconds + seconds
        for loop in (self.main,) if only_main else (self.main, self.lease):
            loop.paused_until = max(loop.paused_until, until)
        self._agenda.add(until, None, lambda: None)

    def kill(self) -> None:
        """Ends it at once."""
        self.end()
        self.record("killed")

    def end(self) -> None:
        """What its loops still have to run never runs."""
        self.alive = False
        for loop in (self.main, self.lease):
            if loop in self._agenda.ready:
                self._agenda.ready.remove(loop)

    def _on_done(self, task: Any) -> None:
        self.ended = True
        if not task.cancelled() and (error := task.exception()) is not None:
            self.record("process failed", error=repr(error))
