"""Threads for plain functions: started when needed, kept for the next, and never waited for when the process ends."""

import asyncio
import contextlib
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from itertools import count
from typing import NamedTuple, TypeVar, cast

T = TypeVar("T")


class ThreadResult(NamedTuple):
    """How a function in a thread ended: apart from the future's own exception, which can be no StopIteration."""

    value: object
    error: BaseException | None


class Threads:
    """Runs functions in daemon threads, as many at once as it is given: slots bound them.

    The standard library's pool joins its threads at exit, so that one function that never returns would keep the
    process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._numbers = count(1)
        self._started = 0

    def start(self, function: Callable[[], object]) -> "asyncio.Future[ThreadResult]":
        """Runs the function now; the future always ends in a `ThreadResult`. Nothing can stop the function."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[ThreadResult] = loop.create_future()

        def call() -> None:
            returned = _call(function)
            self._idle.release()
            # The loop may have ended meanwhile.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_tell, future, returned)

        if not self._idle.acquire(blocking=False):
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{next(self._numbers)}", daemon=True).start()
        self._calls.put(call)
        return future

    async def run(self, function: Callable[..., object], *args: object) -> object:
        """Calls the function in a thread and returns what it returned; it sees this context's variables."""
        call = functools.partial(contextvars.copy_context().run, function, *args)
        returned = await self.start(call)
        if returned.error is not None:
            raise returned.error
        return returned.value

    @classmethod
    async def run_once(cls, name: str, function: Callable[..., T], *args: object) -> T:
        """Calls a blocking function in a thread that is waited for here and not when the process ends."""
        threads = cls(name)
        try:
            return cast("T", await threads.run(function, *args))
        finally:
            threads.close()

    def close(self) -> None:
        """Lets threads end that are done; the others end with their function."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # or what it refers to would live until the next one


def _call(function: Callable[[], object]) -> ThreadResult:
    try:
        return ThreadResult(function(), None)
    except BaseException as error:  # noqa: BLE001
        return ThreadResult(None, error)


def _tell(future: "asyncio.Future[ThreadResult]", returned: ThreadResult) -> None:
    if not future.done():
        future.set_result(returned)
