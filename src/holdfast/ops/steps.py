"""Steps of an operator task: a generator that yields operations, so that one implementation serves async and blocking callers.

An operation is one transaction. A task often needs several: a bulk replay acts in batches, a pruning continues until
nothing is left. The generator yields one operation after another and receives the result of each.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar, overload

from holdfast.core.drive import Errors, drive, drive_async
from holdfast.stores.operation import Operation
from holdfast.stores.protocol import Store

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class StoreCall:
    """A blocking call of the store itself, outside a transaction."""

    call: Callable[[Store], Any]


TaskSteps = Generator[Operation[Any] | StoreCall, Any, T]


def transact(operation: Operation[T]) -> TaskSteps[T]:
    """Runs one transaction; returns its result after the commit."""
    result: T = yield operation
    return result


def call_store(call: Callable[[Store], T]) -> TaskSteps[T]:
    """Returns the result of `call` for the store. It may block, so an async caller runs it in a thread."""
    result: T = yield StoreCall(call)
    return result


def run_steps_sync(store: Store, steps: TaskSteps[T], throw: Errors = ()) -> T:
    """Runs the steps, blocking. If one raises, the earlier operations stay committed.

    An error of a type in `throw` is raised inside the steps, which may handle it.
    """
    return drive(steps, lambda step: step.call(store) if isinstance(step, StoreCall) else store.run_sync(step), throw)


async def run_steps(store: Store, steps: TaskSteps[T], throw: Errors = ()) -> T:
    """`run_steps_sync` for async callers."""
    return await drive_async(
        steps,
        lambda step: asyncio.to_thread(step.call, store) if isinstance(step, StoreCall) else store.run(step),
        throw,
    )


SignalCheck = Callable[[str, str, object], None]
"""Raises `InvalidPayload` if the code of a workflow cannot take this payload of a signal: the workflow, the signal, the payload."""


class StoreService:
    """A store, and a blocking call before each task, for example to create its tables.

    `check_signal` checks payloads against the app, if the service has one.
    """

    def __init__(
        self,
        store: Store,
        prepare: Callable[[], None] = lambda: None,
        check_signal: SignalCheck = lambda workflow, signal, payload: None,
    ) -> None:
        self.store, self.prepare, self.check_signal = store, prepare, check_signal


class AsyncService(StoreService):
    """A service whose methods are awaited."""


class SyncService(StoreService):
    """A service whose methods block."""


class ServiceMethod(Generic[P, T]):
    """A task as a method: awaited on `hf.ops`, blocking on `hf.ops.sync`, with the same parameters."""

    def __init__(self, task: Callable[P, TaskSteps[T]], *given: str) -> None:
        """`given` are parameters of the task that get the attribute of the service with this name."""
        self._task, self._given = task, given
        self.__doc__ = task.__doc__

    @overload
    def __get__(self, service: AsyncService, owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __get__(self, service: SyncService, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, service: None, owner: type) -> "ServiceMethod[P, T]": ...
    def __get__(self, service: AsyncService | SyncService | None, owner: type) -> Any:
        match service:
            case None:
                return self
            case AsyncService():

                async def run(*args: P.args, **kwargs: P.kwargs) -> T:
                    await asyncio.to_thread(service.prepare)
                    return await run_steps(service.store, self._task(*args, **kwargs, **self._of(service)))

                return update_wrapper(run, self._task)
            case SyncService():

                def run_sync(*args: P.args, **kwargs: P.kwargs) -> T:
                    service.prepare()
                    return run_steps_sync(service.store, self._task(*args, **kwargs, **self._of(service)))

                return update_wrapper(run_sync, self._task)

    def _of(self, service: StoreService) -> Any:
        return {name: getattr(service, name) for name in self._given}
