"""An event loop in virtual time. The scheduler runs it turn by turn, so it can be paused, or dropped when its process dies."""

import asyncio
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Generator
from contextvars import Context
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from simulation.clock import Clock

if TYPE_CHECKING:
    from simulation.process import Process

T = TypeVar("T")


class VirtualFuture(asyncio.Future[Any]):
    """A future whose hash is its number: the order of a set of futures must not depend on memory addresses."""

    def __init__(self, *, loop: "VirtualLoop") -> None:
        self._number = next(loop.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualTask(asyncio.Task[Any]):
    """A task whose hash is its number."""

    def __init__(self, coro: Generator[Any, None, Any], *, loop: "VirtualLoop", **options: Any) -> None:
        self._number = next(loop.numbers)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class VirtualLoop(asyncio.AbstractEventLoop):
    """Callbacks and timers of one thread of a process. Functions for an executor run in the loop itself."""

    def __init__(self, clock: Clock, process: "Process", numbers: "count[int]") -> None:
        self.clock, self.process, self.numbers = clock, process, numbers
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []

    def time(self) -> float:
        return self.clock.seconds

    def due_at(self) -> float | None:
        """The time of the next callback; None if there is none."""
        if self._ready:
            return self.clock.seconds
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def turn(self) -> None:
        """Runs everything that is ready now, like one iteration of an ordinary event loop."""
        while self._timers and self._timers[0][0] <= self.clock.seconds:
            self._ready.append(heapq.heappop(self._timers)[2])
        previous = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(len(self._ready)):
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
                if not self.process.alive or self.process.is_paused:
                    break
        finally:
            events._set_running_loop(previous)

    def call_soon(  # type: ignore[override] # typed without a variadic generic
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override] # typed without a variadic generic
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override] # typed without a variadic generic
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.clock.seconds + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override] # typed without a variadic generic
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self.numbers), handle))
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Called by `TimerHandle.cancel`; `due_at` removes it."""

    def create_future(self) -> "asyncio.Future[Any]":
        return VirtualFuture(loop=self)

    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        return VirtualTask(coro, loop=self, **options)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., T], *args: Any
    ) -> "asyncio.Future[T]":
        future = self.create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001
                future.set_exception(error)

        self.call_soon(call)
        return future

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return not self.process.alive

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.process.alive:
            self.process.record("loop error", message=str(context.get("message")), error=repr(context.get("exception")))
