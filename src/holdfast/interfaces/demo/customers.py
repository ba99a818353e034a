"""Customers that place orders at a steady rate, sometimes in bursts; some orders roll back."""

import random
import threading
from itertools import count
from time import monotonic

from holdfast.interfaces.demo.shop import SHELVES, ChangedTheirMind, Shop

_LEAVES_EVERY = 12


class Customers(threading.Thread):
    """Places orders at a steady rate in a separate thread, until `stop`.

    No orders are placed while `queue_is_long`, so that a slow machine does not fall behind without limit.
    """

    def __init__(self, shop: Shop, per_second: float) -> None:
        super().__init__(name="demo-customers", daemon=True)
        self._shop, self._gap = shop, 1 / per_second
        self._stopping = threading.Event()
        self._random = random.Random()  # noqa: S311
        self._numbers = count(1)
        self._rush = 0
        self._next_at = 0.0
        self.queue_is_long = False
        self.left = 0
        self.error: Exception | None = None

    def rush(self, orders: int) -> None:
        """Places this many orders immediately."""
        self._rush += orders

    def run(self) -> None:
        try:
            while not self._stopping.wait(self._pause()):
                if not self.queue_is_long:
                    self._order()
        except Exception as error:  # noqa: BLE001
            self.error = error  # raised by the runner in the main thread

    def stop(self) -> None:
        """No order is placed after this returns."""
        self._stopping.set()
        if self.is_alive():
            self.join()

    def _pause(self) -> float:
        """Seconds until the next order."""
        if self._rush and not self.queue_is_long:
            self._rush -= 1
            return 0.0
        now = monotonic()
        self._next_at = max(self._next_at, now - 1) + self._gap * self._random.uniform(0.5, 1.5)
        return max(0.0, self._next_at - now)

    def _order(self) -> None:
        number = next(self._numbers)
        sku = self._random.choice(list(SHELVES))
        cents = self._random.randint(300, 9000)
        leaves = number % _LEAVES_EVERY == 0
        try:
            self._shop.place_order(f"customer{number}@example.com", sku, cents, leaves=leaves)
        except ChangedTheirMind:
            self.left += 1
