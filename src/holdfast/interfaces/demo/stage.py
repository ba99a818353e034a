"""The stage: everybody who takes part, and the time that passes while the visitor watches."""

import threading
from collections.abc import Callable
from time import monotonic

from holdfast.interfaces.demo.crew import Crew
from holdfast.interfaces.demo.customers import Customers
from holdfast.interfaces.demo.screen import Screen
from holdfast.interfaces.demo.shop import Shop
from holdfast.interfaces.demo.snapshot import Snapshot, take_snapshot
from holdfast.interfaces.demo.world import World

_LOOK_EVERY = 0.1
_SHOW_EVERY = 0.25
_LONG_QUEUE = 300


class Interrupted(Exception):
    """The visitor has seen enough."""


class Stage:
    """Shop, world, crew, customers and screen. `pace` stretches the story: 1 tells it in about 20 seconds.

    `console` is where the web console is, if a visitor has time to use it.
    """

    def __init__(
        self,
        shop: Shop,
        world: World,
        crew: Crew,
        customers: Customers,
        screen: Screen,
        interrupted: threading.Event,
        pace: float,
        console: str | None = None,
    ) -> None:
        self.shop, self.world, self.crew, self.customers = shop, world, crew, customers
        self.pace, self.interrupted, self.console = pace, interrupted, console
        self._screen = screen
        self._shown_at = 0.0

    def say(self, text: str) -> None:
        """The story goes on: one line."""
        self._screen.say(text)

    def show(self) -> None:
        """Brings the screen up to date."""
        self._screen.show(self.look())

    def look(self) -> Snapshot:
        """How things stand now."""
        return take_snapshot(self.shop.database, self.crew.alive())

    def wait(self, seconds: float) -> None:
        """Lets the shop run for so long, at this pace."""
        self.until(lambda _: False, at_most=seconds * self.pace)

    def until(self, holds: Callable[[Snapshot], bool], at_most: float) -> bool:
        """Lets the shop run until something holds, but not for longer than that; says whether it does."""
        deadline = monotonic() + at_most
        while True:
            began = monotonic()
            if self.interrupted.is_set():
                raise Interrupted
            self.crew.mend()
            if self.customers.error is not None:
                raise self.customers.error
            snapshot = self.look()
            self.customers.queue_is_long = snapshot.unfinished > _LONG_QUEUE
            if monotonic() - self._shown_at > _SHOW_EVERY:
                self._shown_at = monotonic()
                self._screen.show(snapshot)
            if holds(snapshot):
                return True
            now = monotonic()
            if now >= deadline:
                return False
            # A demo that ran all night has many rows to look at; watching must not become its main business.
            self.interrupted.wait(min(max(_LOOK_EVERY, 4 * (now - began)), deadline - now))

    def close(self) -> None:
        """The curtain: what was shown last stays."""
        self._screen.close()
