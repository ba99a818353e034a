"""`with_retry`: retries any call in this process by its policy. A call that succeeds at once has almost no overhead.

`RetryState` decides after each failure; the async and the blocking loop here only call, wait and raise.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import lru_cache, update_wrapper
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from holdfast.core.errors import ConfigurationError
from holdfast.core.failures.classify import Classifier, Rules
from holdfast.core.key import check_key
from holdfast.core.retry import RetryPolicy, check_policy
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.outbound.breaker import CircuitBreaker
from holdfast.outbound.budget import RetryBudget
from holdfast.outbound.retry_state import Attempt, RetryState
from holdfast.outbound.test_overrides import TEST_OVERRIDES

__all__ = ["DEFAULT_POLICY", "Attempt", "RetryBudget", "with_retry"]

T = TypeVar("T")
P = ParamSpec("P")

DEFAULT_POLICY = RetryPolicy.exponential(attempts=3, base=0.25, cap=5, retry_after_cap=30)
DEFAULT_TIMEOUT = 10.0

_PLAIN = object()


class Options(TypedDict, total=False):
    """The keyword options of `with_retry`."""

    policy: RetryPolicy
    timeout: Duration | None
    deadline: Duration | None
    idempotency_key: str | Callable[..., str] | None
    classify: Classifier | Rules | None
    log_fields: Mapping[str, object] | None
    budget: RetryBudget | None
    breaker: CircuitBreaker | None


class AsyncDecorator(Protocol):
    """Decorates an async function with retries; a first parameter annotated `Attempt` is passed in."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Attempt, P], Coroutine[Any, Any, T]], /
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, T]], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


class SyncDecorator(Protocol):
    """Decorates a plain function with retries; a first parameter annotated `Attempt` is passed in."""

    @overload
    def __call__(self, function: Callable[Concatenate[Attempt, P], T], /) -> Callable[P, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Callable[P, T]: ...


class RetryRunner:
    """The options of one call, and its async and blocking loops.

    With `own`, the called function applies the timeout and logs the success, and the runner does not.
    """

    __slots__ = (
        "_breaker",
        "_budget",
        "_deadline",
        "_fields",
        "_key",
        "_operation",
        "_own",
        "_policy",
        "_rules",
        "_timeout",
    )

    def __init__(
        self,
        operation: str,
        policy: RetryPolicy = DEFAULT_POLICY,
        timeout: Duration | None = DEFAULT_TIMEOUT,
        deadline: Duration | None = None,
        idempotency_key: str | Callable[..., str] | None = None,
        classify: Classifier | Rules | None = None,
        log_fields: Mapping[str, object] | None = None,
        budget: RetryBudget | None = None,
        breaker: CircuitBreaker | None = None,
        own: bool = False,
    ) -> None:
        if not isinstance(operation, str):
            raise ConfigurationError(
                f"with_retry got {operation!r} for its operation; give a name first: @with_retry('charge'), or "
                "with_retry('charge', function)"
            )
        self._operation, self._policy, self._key = operation, check_policy("policy", policy), idempotency_key
        self._timeout = timeout if timeout is None or timeout is DEFAULT_TIMEOUT else _seconds(timeout)
        self._deadline = None if deadline is None else _seconds(deadline)
        self._rules, self._fields, self._budget = classify, log_fields, budget
        self._breaker, self._own = breaker, own

    async def run(self, function: Callable[..., Awaitable[T]], wants: bool, /, *args: Any, **kwargs: Any) -> T:
        """Awaits the function until it succeeds or no attempt is left. Cancelling it cancels the attempt or the wait."""
        key = None if self._key is None else self._key_for(args, kwargs)
        if self._budget is not None:
            self._budget.called()
        state, given, result, limit = None, args, None, None
        started = began = time.monotonic()
        while True:
            try:
                if wants:
                    given = (self._attempt(state, key, began, started), *args)
                # The guard is outside the timeout, so that a call that hangs counts as a failure of the service.
                if self._breaker is None:
                    async with asyncio.timeout(self._cancelled_after(began, started)) as limit:
                        made = function(*given, **kwargs)
                        result = await made if hasattr(made, "__await__") else _PLAIN
                else:
                    async with self._breaker.guard(), asyncio.timeout(self._cancelled_after(began, started)) as limit:
                        made = function(*given, **kwargs)
                        result = await made if hasattr(made, "__await__") else _PLAIN
            except Exception as error:
                if type(error) is TimeoutError and not error.args and limit is not None and limit.expired():
                    error.args = (f"{self._operation} took longer than {self._limit(began, started)} s",)
                state = state or self._retry_state(key, started)
                wait = state.failed(error, began)
                if wait is None:
                    raise
            else:
                if state is not None and not self._own:
                    state.succeeded()
                if result is _PLAIN:
                    raise TypeError(f"{function!r} returned no awaitable; use with_retry.sync({self._operation!r}, …)")
                return result  # type: ignore[return-value]
            await asyncio.sleep(wait)
            began = time.monotonic()

    def run_sync(self, function: Callable[..., T], wants: bool, /, *args: Any, **kwargs: Any) -> T:
        """`run`, blocking. A plain function cannot be cancelled: it reads its timeout from the `Attempt`."""
        key = None if self._key is None else self._key_for(args, kwargs)
        if self._budget is not None:
            self._budget.called()
        state, given = None, args
        started = began = time.monotonic()
        while True:
            try:
                if wants:
                    given = (self._attempt(state, key, began, started), *args)
                if self._breaker is None:
                    result = function(*given, **kwargs)
                else:
                    with self._breaker.sync.guard() as permit:
                        if wants and permit.deadline is not None:
                            attempt = self._attempt(state, key, began, started)
                            ends = (
                                permit.deadline if attempt.deadline is None else min(attempt.deadline, permit.deadline)
                            )
                            given = (replace(attempt, deadline=ends), *args)
                        result = function(*given, **kwargs)
            except Exception as error:
                state = state or self._retry_state(key, started)
                wait = state.failed(error, began)
                if wait is None:
                    raise
            else:
                if state is not None and not self._own:
                    state.succeeded()
                if isinstance(result, CoroutineType):
                    result.close()
                    raise TypeError(f"{function!r} is async; use `await with_retry({self._operation!r}, …)`")
                return result
            time.sleep(wait)
            began = time.monotonic()

    def _retry_state(self, key: str | None, started: float) -> RetryState:
        rules = self._rules
        return RetryState(
            self._operation,
            self._policy,
            started,
            None if self._deadline is None else started + self._deadline,
            key,
            rules if rules is None or isinstance(rules, Rules) else Rules(classify=rules),
            self._budget,
            self._fields,
        )

    def _cancelled_after(self, began: float, started: float) -> float | None:
        return None if self._own else self._limit(began, started)

    def _limit(self, began: float, started: float) -> float | None:
        """Returns the timeout in seconds of an attempt that starts now."""
        if self._deadline is None:
            return self._timeout
        left = max(0.0, started + self._deadline - began)
        return left if self._timeout is None else min(self._timeout, left)

    def _attempt(self, state: RetryState | None, key: str | None, began: float, started: float) -> Attempt:
        limit = self._limit(began, started)
        number = 1 if state is None else state.number
        most = TEST_OVERRIDES.attempts(self._policy.attempts)
        return Attempt(number, most, key, None if limit is None else began + limit)

    def _key_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        return check_key(self._key if isinstance(self._key, str) else self._key(*args, **kwargs))  # type: ignore[misc]


class WithRetry:
    """Calls an async function and retries temporary failures by the policy.

    answer = await with_retry("fetch rates", fetch, idempotency_key="rates:2026-11-15")

    @with_retry("fetch rates", policy=RetryPolicy.fixed("1s", attempts=4))
    async def fetch(day: str) -> Rates: ...

    By default 3 attempts, 250 ms base, at most 5 s between them, full jitter, 10 s for each attempt. Failures
    are classified as for handlers: by `classify` (a function or `Rules`), else by the built-in rules; `Retry-After` is
    honored up to the policy's `retry_after_cap`. The last failure is raised unchanged, with a note of the reason.

    A function with a required parameter gets the `Attempt`: its number, the idempotency key, the time left. A decorated
    function gets it if its first parameter is annotated with it; there `idempotency_key` can be a function of the other
    arguments. `timeout` cancels an attempt, `deadline` limits all attempts and waits together. `budget` limits how many
    calls are retried, `breaker` guards each attempt. Each failed attempt logs one line, with `log_fields`. For plain
    functions use `with_retry.sync`.
    """

    def __init__(self) -> None:
        self.__name__ = "with_retry"
        self.sync = SyncWithRetry()

    @overload
    def __call__(
        self,
        operation: str,
        function: Callable[[Attempt], Awaitable[T]] | Callable[[], Awaitable[T]],
        /,
        **options: Unpack[Options],
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def __call__(self, operation: str, /, **options: Unpack[Options]) -> AsyncDecorator: ...
    def __call__(
        self, operation: str, function: Callable[..., Awaitable[Any]] | None = None, /, **options: Unpack[Options]
    ) -> Any:
        retry_runner = RetryRunner(operation, **options)
        if function is not None:
            return retry_runner.run(function, _requires(function))

        def decorate(function: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
            if not iscoroutinefunction(function):
                raise TypeError(f"{function!r} is not async; decorate it with @with_retry.sync({operation!r})")
            wants = _annotated(function)

            async def retried(*args: Any, **kwargs: Any) -> Any:
                return await retry_runner.run(function, wants, *args, **kwargs)

            return update_wrapper(retried, function)

        return decorate


class SyncWithRetry:
    """`with_retry.sync`: the same for plain functions.

    A plain function cannot be cancelled from outside: let it take the `Attempt`, and pass `attempt.remaining` as the
    timeout of each wait.
    """

    @overload
    def __call__(
        self, operation: str, function: Callable[[Attempt], T] | Callable[[], T], /, **options: Unpack[Options]
    ) -> T: ...
    @overload
    def __call__(self, operation: str, /, **options: Unpack[Options]) -> SyncDecorator: ...
    def __call__(
        self, operation: str, function: Callable[..., Any] | None = None, /, **options: Unpack[Options]
    ) -> Any:
        retry_runner = RetryRunner(operation, **options)
        if function is not None:
            return retry_runner.run_sync(function, _requires(function))

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            if iscoroutinefunction(function):
                raise TypeError(f"{function!r} is async; decorate it with @with_retry({operation!r})")
            wants = _annotated(function)

            def retried(*args: Any, **kwargs: Any) -> Any:
                return retry_runner.run_sync(function, wants, *args, **kwargs)

            return update_wrapper(retried, function)

        return decorate


with_retry = WithRetry()


@lru_cache(maxsize=256, typed=True)
def _seconds(duration: Duration) -> float:
    return to_timedelta(duration).total_seconds()


def _requires(function: Callable[..., Any]) -> bool:
    """Whether a function has a required positional parameter. Read from its code object, because this is a hot path."""
    code = getattr(function, "__code__", None)
    if code is None or not code.co_argcount:
        return False
    bound = getattr(function, "__self__", None) is not None
    return bool(code.co_argcount - bound > len(getattr(function, "__defaults__", None) or ()))


def _annotated(function: Callable[..., Any]) -> bool:
    """Whether the first parameter is annotated as the `Attempt`."""
    names = getattr(function, "__code__", None)
    if names is None or not names.co_argcount:
        return False
    first: object = function.__annotations__.get(names.co_varnames[0])
    return first is Attempt or first in ("Attempt", "holdfast.Attempt")
