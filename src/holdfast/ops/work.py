"""Work: several operations in a row, written once as a generator, carried out awaiting or blocking.

An operation is one transaction. What an operator asks for often takes more: a bulk replay acts in batches, a
pruning goes on until nothing is left. Work yields one operation after another and receives what each returned, so
that there is one text for both colours, as operations are one text for every driver.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, overload

from holdfast.core.drive import drive, drive_async
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Ask:
    """A blocking question to the store itself, not to its tables."""

    call: Callable[[Store], Any]


Work = Generator[Operation[Any] | Ask, Any, T]


def do(operation: Operation[T]) -> Work[T]:
    """One transaction: its result, committed."""
    result: T = yield operation
    return result


def ask(call: Callable[[Store], T]) -> Work[T]:
    """What `call` returns for the store; it may block, so an awaiting caller runs it in a thread."""
    result: T = yield Ask(call)
    return result


def perform_sync(store: Store, work: Work[T]) -> T:
    """Carries work out, blocking. When it raises, the operations before are committed and stay."""
    return drive(work, lambda step: step.call(store) if isinstance(step, Ask) else store.run_sync(step))


async def perform(store: Store, work: Work[T]) -> T:
    """`perform_sync`, awaiting."""
    return await drive_async(
        work, lambda step: asyncio.to_thread(step.call, store) if isinstance(step, Ask) else store.run(step)
    )


class Side:
    """One side of a service: the store, and what is done before each task, blocking, such as making its tables."""

    def __init__(self, store: Store, prepare: Callable[[], None] = lambda: None) -> None:
        self.store, self.prepare = store, prepare


class Awaiting(Side):
    """The side whose tasks are awaited."""


class Blocking(Side):
    """The side whose tasks block."""


class Task(Generic[P, T]):
    """One thing operators see or do: awaited on `hf.ops`, called on `hf.ops.sync`, with the same parameters."""

    def __init__(self, work: Callable[P, Work[T]]) -> None:
        self._work = work
        self.__doc__ = work.__doc__

    @overload
    def __get__(self, side: Awaiting, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, side: Blocking, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, side: None, owner: type) -> "Task[P, T]": ...
    def __get__(self, side: Awaiting | Blocking | None, owner: type) -> Any:
        match side:
            case None:
                return self
            case Awaiting():

                async def awaiting(*args: P.args, **kwargs: P.kwargs) -> T:
                    await asyncio.to_thread(side.prepare)
                    return await perform(side.store, self._work(*args, **kwargs))

                return update_wrapper(awaiting, self._work)
            case Blocking():

                def blocking(*args: P.args, **kwargs: P.kwargs) -> T:
                    side.prepare()
                    return perform_sync(side.store, self._work(*args, **kwargs))

                return update_wrapper(blocking, self._work)
