"""Runs the demo: keeps workers alive, updates the screen and waits for conditions."""

from collections.abc import Callable
from time import monotonic

from holdfast.interfaces.demo.customers import Customers
from holdfast.interfaces.demo.screen import Screen
from holdfast.interfaces.demo.services import OutsideServices
from holdfast.interfaces.demo.shop import Shop
from holdfast.interfaces.demo.snapshot import Snapshot, take_snapshot
from holdfast.interfaces.demo.worker_processes import WorkerProcesses
from holdfast.runtime.signal_event import SignalEvent

_POLL_SECONDS = 0.1
_REFRESH_SECONDS = 0.25
_LONG_QUEUE = 300


class Interrupted(Exception):
    """The user interrupted the demo."""


class ScenarioRunner:
    """Runs the scenario of the demo. `pace` scales all waits: at 1 the scenario takes about 20 seconds.

    `console` is the URL of the web console, None if the demo has a fixed duration.
    """

    def __init__(
        self,
        shop: Shop,
        services: OutsideServices,
        workers: WorkerProcesses,
        customers: Customers,
        screen: Screen,
        interrupted: SignalEvent,
        pace: float,
        console: str | None = None,
    ) -> None:
        self.shop, self.services, self.workers, self.customers = shop, services, workers, customers
        self.pace, self.interrupted, self.console = pace, interrupted, console
        self._screen = screen
        self._shown_at = 0.0

    def say(self, text: str) -> None:
        """Prints one line."""
        self._screen.say(text)

    def show(self) -> None:
        """Updates the screen."""
        self._screen.show(self.snapshot())

    def snapshot(self) -> Snapshot:
        """Shows the current state."""
        return take_snapshot(self.shop.database, self.workers.alive())

    def wait(self, seconds: float) -> None:
        """Lets the shop run for this long, scaled by `pace`."""
        self.until(lambda _: False, at_most=seconds * self.pace)

    def until(self, holds: Callable[[Snapshot], bool], at_most: float) -> bool:
        """Lets the shop run until a condition holds, for at most `at_most` seconds; returns whether it holds."""
        deadline = monotonic() + at_most
        while True:
            began = monotonic()
            if self.interrupted.is_set():
                raise Interrupted
            self.workers.restart_missing()
            if self.customers.error is not None:
                raise self.customers.error
            snapshot = self.snapshot()
            self.customers.queue_is_long = snapshot.unfinished > _LONG_QUEUE
            if monotonic() - self._shown_at > _REFRESH_SECONDS:
                self._shown_at = monotonic()
                self._screen.show(snapshot)
            if holds(snapshot):
                return True
            now = monotonic()
            if now >= deadline:
                return False
            # After many hours a snapshot reads many rows; it must not use most of the CPU.
            self.interrupted.wait(min(max(_POLL_SECONDS, 4 * (now - began)), deadline - now))

    def close(self) -> None:
        """Stops the screen; the last output stays."""
        self._screen.close()
