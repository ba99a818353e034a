"""Circuit breakers: stop calls to a dependency that fails, and let one call at a time probe whether it has recovered."""

import random
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ParamSpec, TypedDict, TypeVar

from holdfast._log import get_logger
from holdfast.core.circuit import Change, Circuit, Entry, Limits, Result, enter, leave, reset, trip
from holdfast.core.drive import drive, drive_async
from holdfast.core.errors import CircuitOpen, StoreUnavailable
from holdfast.core.values.duration import Duration, to_timedelta
from holdfast.core.values.names import check_name
from holdfast.outbound.circuits import CircuitStore, MemoryCircuits
from holdfast.outbound.failure_classification import classify_failure
from holdfast.outbound.guard import Guard, Permit, SyncGuard

__all__ = ["CircuitBreaker", "Permit", "Result", "SyncCircuitBreaker", "classify_failure"]

log = get_logger("holdfast.breaker")

T = TypeVar("T")
P = ParamSpec("P")

_LOCAL_SECONDS = 5.0
_Steps = Generator[Change[Any], tuple[Circuit, Any, datetime], T]


@dataclass(frozen=True, slots=True)
class _CachedState:
    """The state of a circuit when it was last read. `at` is a time of `time.monotonic()`."""

    at: float
    fence: int
    failures: int
    wait: float | None
    closed: bool


class BreakerOptions(TypedDict, total=False):
    """The keyword options of `CircuitBreaker`."""

    threshold: int
    cooldown: Duration
    jitter: float
    probe_timeout: Duration
    rate: float | None
    window: Duration
    min_calls: int
    classify_failure: Callable[[BaseException], Result]


class CircuitBreaker:
    """Opens after `threshold` failures in a row; then calls fail at once with `CircuitOpen(name, until)`.

    After `cooldown` one call, the probe, is admitted: its success closes the circuit, its failure opens it again.
    A probe that does not end within `probe_timeout` is replaced by another one, and its late result is ignored.
    With `rate`, the circuit also opens when this share of at least `min_calls` calls within `window` failed.

    `circuits` stores the state: in this process (the default), in Redis or in the store, shared by all breakers
    with the same name. While the circuit is closed, shared state is read at most once a second. While the shared state
    is unavailable, each process uses its local state.

    breaker = CircuitBreaker("mailer")
    async with breaker.guard():
        await send(mail)
    """

    def __init__(
        self,
        name: str,
        circuits: CircuitStore | None = None,
        *,
        threshold: int = 5,
        cooldown: Duration = "5m",
        jitter: float = 0.1,
        probe_timeout: Duration = "30s",
        rate: float | None = None,
        window: Duration = "1m",
        min_calls: int = 20,
        classify_failure: Callable[[BaseException], Result] = classify_failure,
    ) -> None:
        self.name = check_name("circuit", name)
        self.limits = Limits(
            threshold=threshold,
            cooldown=to_timedelta(cooldown, name="cooldown"),
            jitter=jitter,
            probe_timeout=to_timedelta(probe_timeout, name="probe_timeout"),
            rate=rate,
            window=to_timedelta(window, name="window"),
            min_calls=min_calls,
        )
        self.classify_failure = classify_failure
        self.circuits = circuits or MemoryCircuits()
        self._peek = self.circuits.peek
        # Shorter than the cooldown: a process must not treat the circuit as closed while another process probes.
        self._refresh = min(self.circuits.refresh, self.limits.cooldown.total_seconds() / 4)
        self._cached: _CachedState | None = None
        self._unreported = 0
        self._local = MemoryCircuits()
        self._local_until = 0.0
        self._shared_permit = Permit(Entry(0, probe=False))
        self.sync = SyncCircuitBreaker(self)

    async def admit(self) -> Permit:
        """Admits one call, or raises `CircuitOpen` at once. Every admitted call must be ended with `settle`."""
        permit = self._admit_cached()
        return await self._drive(self._admit()) if permit is None else permit

    async def settle(self, permit: Permit, result: Result, why: str = "") -> CircuitOpen | None:
        """Records how an admitted call ended; `why` is shown to operators.

        After a failure that leaves the circuit open, returns the `CircuitOpen` that the caller raises instead of the
        failure: a delivery that met an unavailable dependency is parked and not counted, even if it was the probe.
        """
        if self._is_unchanged(permit, result):
            return None
        return await self._drive(self._settle(permit, result, why))

    def guard(self) -> Guard:
        """`async with breaker.guard():` admits the block or raises `CircuitOpen`, and records how it ends.

        A probe that does not end in time is cancelled. A failure that leaves the circuit open is raised as
        `CircuitOpen`, with the failure as its cause.
        """
        return Guard(self)

    async def call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Awaits `function(*args, **kwargs)` under the guard."""
        async with self.guard():
            return await function(*args, **kwargs)

    async def trip(self, duration: Duration, why: str) -> None:
        """Opens the circuit for `duration`, for all processes that share it; then it is probed as usual."""
        await self._drive(self._apply(trip(to_timedelta(duration, name="duration"), why)))

    async def reset(self, why: str) -> None:
        """Closes the circuit for all processes that share it, and clears its failures."""
        await self._drive(self._apply(reset(why)))

    def forget(self) -> None:
        """Discards the cached state, so that the next call reads it."""
        self._cached, self._local_until = None, 0.0

    def _admit_cached(self) -> Permit | None:
        """Decides from cached state: a permit while closed, `CircuitOpen` while open; None if the state must be read."""
        circuit = self._peek(self.name)
        if circuit is None:
            return self._permit_from_cache()
        if circuit.open_until is not None:
            return None
        return (
            self._shared_permit
            if self._shared_permit.entry.fence == circuit.fence
            else self._ordinary_permit(circuit.fence)
        )

    def _permit_from_cache(self) -> Permit | None:
        known = self._cached
        if known is None:
            return None
        age = time.monotonic() - known.at
        if age >= self._refresh:
            return None
        if known.wait is not None and known.wait > age:
            raise CircuitOpen(self.name, known.wait - age)
        return self._ordinary_permit(known.fence) if known.closed else None

    def _ordinary_permit(self, fence: int) -> Permit:
        """The permit of an ordinary call; reused until the circuit's fence changes."""
        if self._shared_permit.entry.fence != fence:
            self._shared_permit = Permit(Entry(fence, probe=False))
        return self._shared_permit

    def _admit(self) -> _Steps[Permit]:
        started = time.monotonic()
        unreported, self._unreported = self._unreported, 0
        outcome = yield from self._apply(enter(self.limits, unreported))
        if isinstance(outcome, timedelta):
            raise CircuitOpen(self.name, outcome)
        if not outcome.probe:
            return Permit(outcome)
        log.info("circuit half open", circuit=self.name)
        # Counted from before the read, so that the probe ends here before the store replaces it.
        return Permit(outcome, started + self.limits.probe_timeout.total_seconds())

    def _is_unchanged(self, permit: Permit, result: Result) -> bool:
        """Whether the result does not change the stored state."""
        if permit.deadline is not None or result is Result.FAILED:
            return False
        return result is Result.ABANDONED or self._is_routine_success()

    def _is_routine_success(self) -> bool:
        """Whether an ordinary success is not written, because the cached state has no failures."""
        known = self._peek(self.name) or self._cached
        if known is None or known.failures:
            return False
        if self.limits.rate is not None:
            if self._refresh <= 0:
                return False
            self._unreported += 1
        return True

    def _settle(self, permit: Permit, result: Result, why: str) -> _Steps[CircuitOpen | None]:
        unreported, self._unreported = self._unreported, 0
        change = leave(permit.entry, result, self.limits, random.random(), why, unreported)  # noqa: S311
        changed = yield from self._apply(change)
        known = self._cached
        if changed and result is Result.SUCCEEDED:
            log.info("circuit closed", circuit=self.name)
        if result is not Result.FAILED or known is None or known.wait is None:
            return None
        if changed:
            log.warning("circuit open", circuit=self.name, seconds=known.wait, error=why)
        return CircuitOpen(self.name, known.wait)

    def _apply(self, change: Change[T]) -> _Steps[T]:
        if time.monotonic() < self._local_until:
            circuit, outcome, now = self._local.change_sync(self.name, change)
        else:
            try:
                circuit, outcome, now = yield change
            except StoreUnavailable as error:
                log.warning("circuit store unavailable", circuit=self.name, error=str(error))
                self._local_until = time.monotonic() + _LOCAL_SECONDS
                circuit, outcome, now = self._local.change_sync(self.name, change)
        wait = circuit.wait(now, self.limits)
        self._cached = _CachedState(
            at=time.monotonic(),
            fence=circuit.fence,
            failures=circuit.failures,
            wait=None if wait is None else wait.total_seconds(),
            closed=circuit.open_until is None,
        )
        return outcome

    async def _drive(self, steps: _Steps[T]) -> T:
        return await drive_async(steps, partial(self.circuits.change, self.name), StoreUnavailable)

    def _drive_sync(self, steps: _Steps[T]) -> T:
        return drive(steps, partial(self.circuits.change_sync, self.name), StoreUnavailable)


class SyncCircuitBreaker:
    """`breaker.sync`: the same names, blocking.

    A blocking call cannot be cancelled from outside: give it a timeout no longer than `permit.remaining`. The result of
    a probe that ends after its deadline is ignored.
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    def admit(self) -> Permit:
        """`CircuitBreaker.admit`, blocking."""
        permit = self._breaker._admit_cached()
        return self._breaker._drive_sync(self._breaker._admit()) if permit is None else permit

    def settle(self, permit: Permit, result: Result, why: str = "") -> CircuitOpen | None:
        """`CircuitBreaker.settle`, blocking."""
        if self._breaker._is_unchanged(permit, result):
            return None
        return self._breaker._drive_sync(self._breaker._settle(permit, result, why))

    def trip(self, duration: Duration, why: str) -> None:
        """`CircuitBreaker.trip`, blocking."""
        self._breaker._drive_sync(self._breaker._apply(trip(to_timedelta(duration, name="duration"), why)))

    def reset(self, why: str) -> None:
        """`CircuitBreaker.reset`, blocking."""
        self._breaker._drive_sync(self._breaker._apply(reset(why)))

    def guard(self) -> SyncGuard:
        """`CircuitBreaker.guard`, blocking: `with breaker.sync.guard():`."""
        return SyncGuard(self._breaker)

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `function(*args, **kwargs)` under the guard."""
        with self.guard():
            return function(*args, **kwargs)
