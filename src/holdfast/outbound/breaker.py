"""Circuit breakers: a dependency that is down is left alone, and one caller at a time looks whether it is back."""

import random
import time
from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypedDict, TypeVar

from holdfast._log import get_logger
from holdfast.core.circuit import Change, Circuit, Entry, Limits, Result, enter, leave, reset, trip
from holdfast.core.duration import Duration, to_timedelta
from holdfast.core.errors import CircuitOpen, StoreUnavailable
from holdfast.core.names import check_name
from holdfast.outbound.circuits import CircuitStore, MemoryCircuits
from holdfast.outbound.failure_classification import classify_failure
from holdfast.outbound.guard import Guard, Permit, SyncGuard

__all__ = ["CircuitBreaker", "Permit", "Result", "SyncCircuitBreaker", "classify_failure"]

log = get_logger("holdfast.breaker")

T = TypeVar("T")
P = ParamSpec("P")

_ALONE_SECONDS = 5.0
_Visit = Generator[Change[Any], tuple[Circuit, Any, datetime], T]


@dataclass(frozen=True, slots=True)
class _Known:
    """How a circuit stood when it was last looked at, `at` a time of `time.monotonic()`."""

    at: float
    fence: int
    failures: int
    wait: float | None
    closed: bool


class BreakerOptions(TypedDict, total=False):
    """What a breaker takes by name; see `CircuitBreaker`."""

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

    After `cooldown` one call, the probe, is let through: its success closes the circuit, its failure opens it again.
    A probe has `probe_timeout`; whoever took it and died is replaced after that, and what it says later is ignored.
    With `rate`, that part of at least `min_calls` calls within `window` opens it too.

    `circuits` says where the state is kept: in this process (the default), in Redis or in the store, shared by all
    who use the same name. Shared state is looked at once a second at most while the circuit is closed, and when it
    cannot be reached each process goes on by itself.

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
        # Never so long that a process could still believe in a closed circuit when another one probes.
        self._refresh = min(self.circuits.refresh, self.limits.cooldown.total_seconds() / 4)
        self._known: _Known | None = None
        self._untold = 0
        self._alone = MemoryCircuits()
        self._alone_until = 0.0
        self._passing = Permit(Entry(0, probe=False))
        self.sync = SyncCircuitBreaker(self)

    async def admit(self) -> Permit:
        """Leave to make one call, or `CircuitOpen` at once. Whoever is admitted calls `settle`, whatever happens."""
        permit = self._quick()
        return await self._drive(self._admit()) if permit is None else permit

    async def settle(self, permit: Permit, result: Result, why: str = "") -> CircuitOpen | None:
        """Tells how an admitted call ended; `why` is shown to operators.

        After a failure that leaves the circuit open, returns the `CircuitOpen` to raise in its place: a delivery
        that met a dependency known to be down is parked and not counted, also when it was the one to look.
        """
        if self._untouched(permit, result):
            return None
        return await self._drive(self._settle(permit, result, why))

    def guard(self) -> Guard:
        """`async with breaker.guard():` admits the block or raises `CircuitOpen`, and judges how it ends.

        A probe that does not end in time is cancelled. A failure that leaves the circuit open is raised as
        `CircuitOpen`, with the failure as its cause.
        """
        return Guard(self)

    async def call(self, function: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Awaits `function(*args, **kwargs)` under the guard."""
        async with self.guard():
            return await function(*args, **kwargs)

    async def trip(self, duration: Duration, why: str) -> None:
        """Opens it for `duration`, for everybody; then it is probed as ever."""
        await self._drive(self._visit(trip(to_timedelta(duration, name="duration"), why)))

    async def reset(self, why: str) -> None:
        """Closes it for everybody and forgets its failures."""
        await self._drive(self._visit(reset(why)))

    def forget(self) -> None:
        """Looks anew at the next call, however lately it has looked."""
        self._known, self._alone_until = None, 0.0

    def _quick(self) -> Permit | None:
        """What can be said without looking: leave while closed, a refusal while open; None when it must look."""
        circuit = self._peek(self.name)
        if circuit is None:
            return self._remembered()
        if circuit.open_until is not None:
            return None
        return self._passing if self._passing.entry.fence == circuit.fence else self._pass(circuit.fence)

    def _remembered(self) -> Permit | None:
        known = self._known
        if known is None:
            return None
        age = time.monotonic() - known.at
        if age >= self._refresh:
            return None
        if known.wait is not None and known.wait > age:
            raise CircuitOpen(self.name, known.wait - age)
        return self._pass(known.fence) if known.closed else None

    def _pass(self, fence: int) -> Permit:
        """Leave for an ordinary call; they are all alike until the circuit changes."""
        if self._passing.entry.fence != fence:
            self._passing = Permit(Entry(fence, probe=False))
        return self._passing

    def _admit(self) -> _Visit[Permit]:
        started = time.monotonic()
        untold, self._untold = self._untold, 0
        outcome = yield from self._visit(enter(self.limits, untold))
        if isinstance(outcome, timedelta):
            raise CircuitOpen(self.name, outcome)
        if not outcome.probe:
            return Permit(outcome)
        log.info("circuit half open", circuit=self.name)
        # Counted from before the question, so that it ends here before it ends there.
        return Permit(outcome, started + self.limits.probe_timeout.total_seconds())

    def _untouched(self, permit: Permit, result: Result) -> bool:
        """Whether nothing has to be told."""
        if permit.deadline is not None or result is Result.FAILED:
            return False
        return result is Result.ABANDONED or self._unremarkable()

    def _unremarkable(self) -> bool:
        """Whether an ordinary success need not be told: no failure is known of."""
        known = self._peek(self.name) or self._known
        if known is None or known.failures:
            return False
        if self.limits.rate is not None:
            if self._refresh <= 0:
                return False
            self._untold += 1
        return True

    def _settle(self, permit: Permit, result: Result, why: str) -> _Visit[CircuitOpen | None]:
        untold, self._untold = self._untold, 0
        change = leave(permit.entry, result, self.limits, random.random(), why, untold)  # noqa: S311
        changed = yield from self._visit(change)
        known = self._known
        if changed and result is Result.SUCCEEDED:
            log.info("circuit closed", circuit=self.name)
        if result is not Result.FAILED or known is None or known.wait is None:
            return None
        if changed:
            log.warning("circuit open", circuit=self.name, seconds=known.wait, error=why)
        return CircuitOpen(self.name, known.wait)

    def _visit(self, change: Change[T]) -> _Visit[T]:
        if time.monotonic() < self._alone_until:
            circuit, outcome, now = self._alone.change_sync(self.name, change)
        else:
            try:
                circuit, outcome, now = yield change
            except StoreUnavailable as error:
                log.warning("circuit store unavailable", circuit=self.name, error=str(error))
                self._alone_until = time.monotonic() + _ALONE_SECONDS
                circuit, outcome, now = self._alone.change_sync(self.name, change)
        wait = circuit.wait(now, self.limits)
        self._known = _Known(
            at=time.monotonic(),
            fence=circuit.fence,
            failures=circuit.failures,
            wait=None if wait is None else wait.total_seconds(),
            closed=circuit.open_until is None,
        )
        return outcome

    async def _drive(self, steps: _Visit[T]) -> T:
        try:
            change = next(steps)
            while True:
                try:
                    answer = await self.circuits.change(self.name, change)
                except StoreUnavailable as error:
                    change = steps.throw(error)
                else:
                    change = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def _drive_sync(self, steps: _Visit[T]) -> T:
        try:
            change = next(steps)
            while True:
                try:
                    answer = self.circuits.change_sync(self.name, change)
                except StoreUnavailable as error:
                    change = steps.throw(error)
                else:
                    change = steps.send(answer)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class SyncCircuitBreaker:
    """`breaker.sync`: the same names, blocking.

    A blocking call cannot be broken off from outside: give it a time-out no longer than `permit.remaining`. A probe
    that goes on after its deadline decides nothing.
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker

    def admit(self) -> Permit:
        """`CircuitBreaker.admit`, blocking."""
        permit = self._breaker._quick()
        return self._breaker._drive_sync(self._breaker._admit()) if permit is None else permit

    def settle(self, permit: Permit, result: Result, why: str = "") -> CircuitOpen | None:
        """`CircuitBreaker.settle`, blocking."""
        if self._breaker._untouched(permit, result):
            return None
        return self._breaker._drive_sync(self._breaker._settle(permit, result, why))

    def trip(self, duration: Duration, why: str) -> None:
        """`CircuitBreaker.trip`, blocking."""
        self._breaker._drive_sync(self._breaker._visit(trip(to_timedelta(duration, name="duration"), why)))

    def reset(self, why: str) -> None:
        """`CircuitBreaker.reset`, blocking."""
        self._breaker._drive_sync(self._breaker._visit(reset(why)))

    def guard(self) -> SyncGuard:
        """`with breaker.sync.guard():` as `CircuitBreaker.guard`."""
        return SyncGuard(self._breaker)

    def call(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls `function(*args, **kwargs)` under the guard."""
        with self.guard():
            return function(*args, **kwargs)
