"""An event loop in virtual time. The scheduler runs it turn by turn, so it can be paused, or dropped when its process dies."""

import asyncio
import contextvars
import heapq
from asyncio import events
from collections import deque
from collections.abc import Callable, Generator
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from simulation.clock import Clock

if TYPE_CHECKING:
    from simulation.process import Process

T = TypeVar("T")

Due = tuple[float, int, "VirtualLoop | None", Any]
"""A timer: its time, its number, its loop (None for the world), and the callback or the future that waits for it."""


class Agenda:
    """All timers of a world, and the loops that have something to run now, in the order in which they became ready."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.numbers = clock, count(1)
        self.timers: list[Due] = []
        self.ready: list[VirtualLoop] = []

    def add(self, when: float, loop: "VirtualLoop | None", what: Any) -> None:
        heapq.heappush(self.timers, (when, next(self.numbers), loop, what))

    def advance(self, end: float) -> bool:
        """Moves time to the next timer and makes what is due then ready; False if there is none before `end`."""
        timers = self.timers
        if not timers or timers[0][0] >= end:
            return False
        now = self.clock.seconds = max(self.clock.seconds, timers[0][0])
        while timers and timers[0][0] <= now:
            _, _, loop, what = heapq.heappop(timers)
            if loop is None:
                what()
            elif isinstance(what, Callback):
                loop.add(what)
            elif not what.done():
                what.set_result(None)
        return True


class VirtualFuture(asyncio.Future[Any]):
    """A future whose hash is its number: the order of a set of futures must not depend on memory addresses."""

    def __init__(self, *, loop: "VirtualLoop") -> None:
        self._number = next(loop.agenda.numbers)
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class VirtualTask(asyncio.Task[Any]):
    """A task whose hash is its number."""

    def __init__(self, coro: Generator[Any, None, Any], *, loop: "VirtualLoop", **options: Any) -> None:
        self._number = next(loop.agenda.numbers)
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class Callback:
    """What a loop returns for a callback: it can be cancelled."""

    __slots__ = ("_when", "args", "call", "context", "is_cancelled")

    def __init__(self, call: Callable[..., object], args: Any, context: Any, when: float = 0.0) -> None:
        self.call, self.args, self._when = call, args, when
        self.context: contextvars.Context = contextvars.copy_context() if context is None else context
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when


async def sleep(delay: float, result: Any = None) -> Any:
    """`asyncio.sleep` in virtual time: one timer and one turn."""
    if delay <= 0:
        await _yield()
        return result
    loop: Any = asyncio.get_running_loop()
    future: asyncio.Future[None] = asyncio.Future(loop=loop)
    loop.agenda.add(loop.agenda.clock.seconds + delay, loop, future)
    await future
    return result


class _Yield:
    def __await__(self) -> Generator[None, None, None]:
        yield


def _yield() -> _Yield:
    return _Yield()


class VirtualLoop(asyncio.AbstractEventLoop):
    """Callbacks and timers of one thread of a process. Functions for an executor run in the loop itself."""

    def __init__(self, agenda: Agenda, process: "Process") -> None:
        self.agenda, self.clock, self.process = agenda, agenda.clock, process
        self.paused_until = 0.0
        self._is_ready = False
        self.callbacks: deque[Callback] = deque()

    def time(self) -> float:
        return self.clock.seconds

    def add(self, callback: Callback) -> None:
        """Runs the callback in the next turn."""
        if not self._is_ready and self.process.alive:
            self._is_ready = True
            self.agenda.ready.append(self)
        self.callbacks.append(callback)

    def turn(self) -> None:
        """Runs everything that is ready now, like one iteration of an ordinary event loop."""
        callbacks, process = self.callbacks, self.process
        events._set_running_loop(self)
        for _ in range(len(callbacks)):
            callback = callbacks.popleft()
            if not callback.is_cancelled:
                try:
                    callback.context.run(callback.call, *callback.args)
                except (KeyboardInterrupt, SystemExit):
                    raise
                except BaseException as error:  # noqa: BLE001
                    self.call_exception_handler({"message": "callback failed", "exception": error})
                if not process.alive or self.paused_until > self.clock.seconds:
                    break
        if not callbacks and process.alive:
            self._is_ready = False
            self.agenda.ready.remove(self)

    def call_soon(  # type: ignore[override] # typed without a variadic generic
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        made = Callback(callback, args, context)
        self.add(made)
        return made

    def call_soon_threadsafe(  # type: ignore[override] # typed without a variadic generic
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override] # typed without a variadic generic
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        return self.call_at(self.clock.seconds + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override] # typed without a variadic generic
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Callback:
        made = Callback(callback, args, context, when)
        self.agenda.add(when, self, made)
        return made

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
