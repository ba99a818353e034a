"""The context of a step: what it remembers, what it waits for, and how it completes."""

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any, NoReturn, ParamSpec, TypeVar, cast, overload

from holdfast.core.drive import drive, drive_async
from holdfast.core.errors import ConfigurationError, InvalidPayload, LeaseLost
from holdfast.core.events import payload
from holdfast.core.events.validation import stored_value
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.core.values.names import check_name
from holdfast.core.workflows.names import memo_name
from holdfast.engine.handlers.handler import hints_of
from holdfast.engine.workflows.fan_out import ChildWorkflow, Requests, map_items, run_child
from holdfast.engine.workflows.step_context import StepContext, SyncStepContext
from holdfast.stores.operation import Operation
from holdfast.stores.workflows.run import StepRow
from holdfast.stores.workflows.wait import Suspension, WaitOutcome, memo, reopen_wait, resolve_wait

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_LOCK_HINT = "call it before ctx.complete, in whose transaction this step is locked"


class StepSuspended(BaseException):
    """Ends a run of a step that waits. Not an `Exception`, so that a handler's `except Exception` does not catch it."""


class Step(StepContext):
    """One step of a workflow as its function sees it. After a wait the function runs again from its start.

    So an effect before a wait belongs in `ctx.step`, which remembers its result. `ctx.key` is the same in every run of
    the step: pass it to other systems as the idempotency key.
    """

    __slots__ = ("_calls",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._calls: Counter[str] = Counter()

    @property
    def sync(self) -> "SyncStep":
        """The same methods for a plain function."""
        return SyncStep(self)

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Calls a function and remembers its result under this name: a later run of the step does not call it again.

        A crash between the call and the stored result repeats the call, so pass `ctx.key` to it where another system is
        changed. The result passes through JSON, also the first time.
        """
        memo_key, known = self._recall(name)
        if known is not None:
            return _read(known.result, function)
        result = function(*args, **kwargs)
        text = payload.encode(await result if inspect.isawaitable(result) else result)
        self._stored(await self._store.run(self._memo(memo_key, text)))
        return _read(text, function)

    @overload
    async def wait(self, signal: str, type: type[T]) -> T: ...
    @overload
    async def wait(self, signal: str, type: type[T], *, timeout: Duration) -> T | None: ...  # noqa: ASYNC109
    @overload
    async def wait(self, signal: str, *, timeout: Duration | None = None) -> Any: ...  # noqa: ASYNC109
    async def wait(self, signal: str, type: Any = Any, *, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109
        """Waits for a signal of this name and returns its payload, or None when `timeout` passes first.

        The step is suspended: it holds no slot, and its function runs again from its start once the signal is there. A
        signal that was sent earlier counts; each signal ends one wait.
        """
        delay = None if timeout is None else to_timedelta(timeout, name="timeout")
        return await drive_async(self._wait_for(signal, delay, type), self._store.run)

    async def sleep(self, duration: Duration) -> None:
        """Suspends the step for this time, by the database's clock, once: a later run of the step continues after it."""
        await drive_async(self._wait_for(None, to_timedelta(duration, name="duration"), Any), self._store.run)

    async def map(self, function: Callable[..., Any], items: Iterable[object]) -> list[Any]:
        """Runs a mapped step (`@workflow.step(mapped=True)`) once per item and returns the results in the same order.

        The items run concurrently, each on any worker. The step is suspended until the last of them is done.
        """
        return cast("list[Any]", await drive_async(map_items(self, function, items), self._store.run))

    async def child(self, workflow: ChildWorkflow, /, *args: Any, **kwargs: Any) -> Any:
        """Starts a run of another workflow, once, waits for it and returns its result.

        Raises `WorkflowFailed` if it failed or was cancelled; it is cancelled when this run fails or is cancelled. When
        this run is retried, a failed child is started again, and a child that is done is kept.
        """
        return await drive_async(run_child(self, workflow, args, kwargs), self._store.run)

    def _recall(self, name: str) -> tuple[tuple[str, int], StepRow | None]:
        """The key of a memo and its stored row, if any; the nth call with a name has its own memo."""
        if ":" in check_name("memo", name):
            raise ConfigurationError(f"ctx.step({name!r}): the name has a colon; leave it out")
        if self.completing:
            raise ConfigurationError(
                f"ctx.step({name!r}) after ctx.complete would wait forever for the lock that ctx.complete holds; {_LOCK_HINT}"
            )
        return self._remembered(name)

    def next_call(self, name: str) -> int:
        """The number of this call of a wait, a memo, a map or a child: the n-th call with a name has the number n in every run."""
        if self.completing:
            raise ConfigurationError(
                f"step {self.spec.name} cannot wait or store values after ctx.complete; {_LOCK_HINT}"
            )
        self._calls[name] += 1
        return self._calls[name] - 1

    def memo(self, name: str, occurrence: int = 0) -> StepRow | None:
        """The value that this step stored under a name before this run."""
        return self._memos.get((name, occurrence))

    def _remembered(self, name: str) -> tuple[tuple[str, int], StepRow | None]:
        found = memo_name(self.spec.name, name), self.next_call(name)
        return found, self._memos.get(found)

    def _memo(self, memo_key: tuple[str, int], text: str) -> Operation[bool]:
        return memo(self.claim, self.run_id, *memo_key, text)

    def _stored(self, stored: bool) -> None:
        if not stored:
            raise LeaseLost(self.delivery_id, self.fence)

    def _wait_for(self, signal: str | None, delay: timedelta | None, type: Any) -> Requests:
        """The payload of a signal, or None after the delay; suspends the step until then."""
        wait, row = self._remembered("sleep:timer" if signal is None else f"wait:{check_name('signal', signal)}")
        if row is not None and row.done:
            known = WaitOutcome(True, row.outcome, row.result)
        else:
            known = yield resolve_wait(self.claim, self.run_id, *wait, signal)
        self._stored(known.held)
        if known.outcome is None:
            self.suspend(wait, signal, delay)
        if known.outcome != "signal":
            return None
        try:
            return stored_value(
                known.result, type, f"signal {signal}", "; retry the run and send the signal with a payload that fits"
            )
        except InvalidPayload:
            # Otherwise every retry would read the same payload.
            self._stored((yield reopen_wait(self.claim, self.run_id, *wait)))
            raise

    def suspend(
        self, wait: tuple[str, int], signal: str | None, delay: timedelta | None, *, stored: bool = True
    ) -> NoReturn:
        """Ends this run of the step until its wait is over. A wait that is not `stored` has a row already."""
        until = None if self.deadline is None else self.deadline.at
        self.suspension = Suspension(
            self.run_id, *wait, self.delivery_id, self.fence, self._loaded.signals, signal, delay, stored, until
        )
        raise StepSuspended(f"step {self.spec.name} waits for {wait[0]}")


class SyncStep(SyncStepContext):
    """The blocking methods of a step."""

    __slots__ = ()

    @property
    def _step(self) -> Step:
        return cast("Step", self._context)

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """`Step.step`, blocking."""
        step = self._step
        memo_key, known = step._recall(name)
        if known is not None:
            return cast("R", _read(known.result, function))
        text = payload.encode(function(*args, **kwargs))
        step._stored(step._store.run_sync(step._memo(memo_key, text)))
        return cast("R", _read(text, function))

    def wait(self, signal: str, type: Any = Any, *, timeout: Duration | None = None) -> Any:
        """`Step.wait`, blocking only for a query: the step is suspended, and its thread ends."""
        delay = None if timeout is None else to_timedelta(timeout, name="timeout")
        return drive(self._step._wait_for(signal, delay, type), self._step._store.run_sync)

    def sleep(self, duration: Duration) -> None:
        """`Step.sleep`: the step is suspended, and its thread ends."""
        drive(self._step._wait_for(None, to_timedelta(duration, name="duration"), Any), self._step._store.run_sync)

    def map(self, function: Callable[..., Any], items: Iterable[object]) -> list[Any]:
        """`Step.map`: the step is suspended, and its thread ends."""
        return cast("list[Any]", drive(map_items(self._step, function, items), self._step._store.run_sync))

    def child(self, workflow: ChildWorkflow, /, *args: Any, **kwargs: Any) -> Any:
        """`Step.child`: the step is suspended, and its thread ends."""
        return drive(run_child(self._step, workflow, args, kwargs), self._step._store.run_sync)


def _read(text: str | None, function: Callable[..., Any]) -> Any:
    name = getattr(function, "__name__", "the function")
    return stored_value(text, hints_of(function).get("return", Any), f"the stored result of {name}")
