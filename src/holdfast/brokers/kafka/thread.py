"""A thread for calls that block."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")


class CallThread:
    """Makes calls one after the other.

    A daemon, unlike those of an executor: what a stalled broker never answers does not keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Future[Any], Callable[..., Any], tuple[object, ...]] | None] = SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[..., _T], *args: object) -> _T:
        """The call's result. Whoever stops waiting does not stop a call that has begun."""
        return await asyncio.wrap_future(self.tell(function, *args))

    def tell(self, function: Callable[..., _T], *args: object) -> "Future[_T]":
        """Asks for a call and does not wait."""
        future: Future[_T] = Future()
        self._calls.put((future, function, args))
        return future

    def end(self) -> None:
        """Ends the thread after what was asked of it before."""
        self._calls.put(None)

    def _run(self) -> None:
        while (asked := self._calls.get()) is not None:
            future, function, args = asked
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function(*args))
                except BaseException as error:  # noqa: BLE001
                    future.set_exception(error)
