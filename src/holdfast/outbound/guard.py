"""Guards: context managers that admit a block through a circuit breaker and record how it ended."""

import asyncio
import time
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from holdfast.core.circuit import Entry, Result
from holdfast.outbound.failure_classification import describe_error

if TYPE_CHECKING:
    from holdfast.outbound.breaker import CircuitBreaker


@dataclass(frozen=True, slots=True)
class Permit:
    """Permission for one call, to be settled once. A probe must end by `deadline`, a time of `time.monotonic()`."""

    entry: Entry
    deadline: float | None = None

    @property
    def probe(self) -> bool:
        return self.entry.probe

    @property
    def remaining(self) -> float | None:
        """Seconds left for a probe; None for an ordinary call."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())


class Guard:
    """Guards one async block."""

    __slots__ = ("_breaker", "_permit", "_timeout")

    def __init__(self, breaker: "CircuitBreaker") -> None:
        self._breaker = breaker

    async def __aenter__(self) -> Permit:
        permit = self._breaker._admit_cached()
        if permit is None:
            permit = await self._breaker.admit()
        self._permit, self._timeout = permit, None
        if permit.deadline is not None:
            self._timeout = await asyncio.timeout(permit.remaining).__aenter__()
        return permit

    async def __aexit__(
        self, kind: type[BaseException] | None, given: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        error = given
        if self._timeout is None:
            if error is None and self._breaker._is_routine_success():
                return False
        else:
            try:
                await self._timeout.__aexit__(kind, given, trace)
            except TimeoutError as late:
                error = late
        if error is None:
            await self._breaker.settle(self._permit, Result.SUCCEEDED)
            return False
        opened = await self._breaker.settle(self._permit, self._breaker.classify_failure(error), describe_error(error))
        if opened is not None:
            raise opened from error
        if error is not given:
            raise error from given
        return False


class SyncGuard:
    """Guards one blocking block."""

    __slots__ = ("_breaker", "_permit")

    def __init__(self, breaker: "CircuitBreaker") -> None:
        self._breaker = breaker

    def __enter__(self) -> Permit:
        permit = self._breaker._admit_cached()
        if permit is None:
            permit = self._breaker.sync.admit()
        self._permit = permit
        return permit

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        if error is None:
            if self._permit.deadline is not None or not self._breaker._is_routine_success():
                self._breaker.sync.settle(self._permit, Result.SUCCEEDED)
            return False
        opened = self._breaker.sync.settle(self._permit, self._breaker.classify_failure(error), describe_error(error))
        if opened is not None:
            raise opened from error
        return False
