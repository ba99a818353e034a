"""The deadline of a step: it must be done within this time after its first start, including all attempts and waits."""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from holdfast.core.change import Change, Postpone, Retry
from holdfast.core.errors import HoldfastError
from holdfast.core.values.duration import format_duration
from holdfast.engine.handlers.handler import Handler
from holdfast.stores.workflows.wait import DeadlineRow

_NONE = timedelta(0)


class StepDeadlinePassed(HoldfastError):
    """A step was not done within its deadline."""

    __module__ = "holdfast"  # failures are stored with this name; it stays when the class moves

    def __init__(self, step: str, limit: timedelta) -> None:
        super().__init__(step, limit)
        self.step, self.limit = step, limit

    def __str__(self) -> str:
        return f"step {self.step} was not done within its deadline of {format_duration(self.limit)}"


class RunningDeadline:
    """The deadline of a step that runs. The database's clock decides; what is left is measured from the query."""

    __slots__ = ("_ends", "_timer", "at")

    def __init__(self, row: DeadlineRow, timer: Callable[[], float] = time.monotonic) -> None:
        self.at: datetime = row.at
        self._timer, self._ends = timer, timer() + row.left.total_seconds()

    @property
    def left(self) -> timedelta:
        """The time that is left; zero when it has passed."""
        return max(timedelta(seconds=self._ends - self._timer()), _NONE)

    def limited(self, handler: Handler) -> Handler:
        """The handler with a timeout that ends at the deadline or earlier."""
        left = self.left
        return handler if handler.timeout is not None and handler.timeout <= left else replace(handler, timeout=left)

    def brought_forward(self, change: Change) -> Change:
        """The change, with a later retry or postponement moved to the deadline: there the step is claimed and fails."""
        match change:
            case Retry(delay) | Postpone(delay) if delay > self.left:
                return replace(change, delay=self.left)
            case _:
                return change
