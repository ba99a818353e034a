"""Threads for plain functions: started on demand, reused, and not waited for at the end of the process."""

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
    """How a function in a thread ended. A future cannot hold every exception, for example StopIteration."""

    value: object
    error: BaseException | None


class Threads:
    """Runs functions in daemon threads, without a limit: the number of slots limits them.

    The standard library's pool joins its threads at exit: one function that never returns would keep the process from
    ending.
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
            # The loop may have ended.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(_set_result, future, returned)

        if not self._idle.acquire(blocking=False):
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{next(self._numbers)}", daemon=True).start()
        self._calls.put(call)
        return future

    async def run(self, function: Callable[..., object], *args: object) -> object:
        """Calls the function in a thread, with this context's variables, and returns its result."""
        call = functools.partial(contextvars.copy_context().run, function, *args)
        returned = await self.start(call)
        if returned.error is not None:
            raise returned.error
        return returned.value

    @classmethod
    async def run_once(cls, name: str, function: Callable[..., T], *args: object) -> T:
        """Calls a blocking function in a new thread, which the end of the process does not wait for."""
        threads = cls(name)
        try:
            return cast("T", await threads.run(function, *args))
        finally:
            threads.close()

    def close(self) -> None:
        """Ends idle threads; the others end with their function."""
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # otherwise its objects would live until the next call


def _call(function: Callable[[], object]) -> ThreadResult:
    try:
        return ThreadResult(function(), None)
    except BaseException as error:  # noqa: BLE001
        return ThreadResult(None, error)


def _set_result(future: "asyncio.Future[ThreadResult]", returned: ThreadResult) -> None:
    if not future.done():
        future.set_result(returned)
