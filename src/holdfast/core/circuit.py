"""Circuit breaker rules: when a circuit opens, and which call may probe whether the dependency has recovered.

A circuit is a small value, and these pure functions are its only rules. A circuit store (memory, Redis, a database)
reads the value, applies a function with its clock and writes the result atomically, so all stores behave the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.text import sanitize

T = TypeVar("T")

_WHY_LIMIT = 300
_SHORTEST_WAIT = timedelta(seconds=2)


class Result(StrEnum):
    """The result of a call through a circuit: succeeded, failed, or unknown because it was abandoned."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"


class CircuitState(StrEnum):
    """Closed: calls pass. Open: no call passes. Half open: one call may probe. Probing: one call is probing."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    PROBING = "probing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a circuit opens, for how long, and how long a probe may take.

    It opens after `threshold` consecutive failures, or when the fraction `rate` of at least `min_calls` calls within
    `window` failed. `jitter` extends the cooldown by up to that fraction.
    """

    threshold: int = 5
    cooldown: timedelta = timedelta(minutes=5)
    jitter: float = 0.1
    probe_timeout: timedelta = timedelta(seconds=30)
    rate: float | None = None
    window: timedelta = timedelta(minutes=1)
    min_calls: int = 20

    def __post_init__(self) -> None:
        for name, low in (("threshold", 1), ("min_calls", 1)):
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                raise ConfigurationError(f"{name} is {value!r}; give a whole number, at least {low}")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"jitter is {self.jitter!r}; use a fraction of the cooldown from 0 to 1")
        if self.rate is not None and not 0 < self.rate <= 1:
            raise ConfigurationError(
                f"rate is {self.rate!r}; use the fraction of failed calls that opens the circuit, such as 0.5"
            )
        for name in ("cooldown", "probe_timeout", "window"):
            if getattr(self, name) <= timedelta(0):
                raise ConfigurationError(f"{name} is {getattr(self, name)}; use a duration above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """The stored value of one circuit.

    `fence` increases with each change of state, so that a call that entered before has no effect after it. `failures`
    are consecutive. `calls` and `failed` count since `window_at`, the `past_` fields in the previous window.
    """

    fence: int = 0
    failures: int = 0
    open_until: datetime | None = None
    probe_until: datetime | None = None
    changed_at: datetime | None = None
    why: str | None = None
    window_at: datetime | None = None
    calls: int = 0
    failed: int = 0
    past_calls: int = 0
    past_failed: int = 0

    def state(self, now: datetime) -> CircuitState:
        """The state at `now`."""
        if self.open_until is None:
            return CircuitState.CLOSED
        if self.open_until > now:
            return CircuitState.OPEN
        if self.probe_until is not None and self.probe_until > now:
            return CircuitState.PROBING
        return CircuitState.HALF_OPEN

    def wait(self, now: datetime, limits: Limits) -> timedelta | None:
        """The time until the next call may try to enter; None if a call may enter now.

        A probe usually ends long before its deadline. During a probe the wait is twice the time that it has taken so
        far: after a quick probe the next call enters soon, and during one that hangs few calls try to enter.
        """
        state = self.state(now)
        if state is CircuitState.OPEN and self.open_until is not None:
            return self.open_until - now
        if state is CircuitState.PROBING and self.probe_until is not None:
            taken = now - (self.probe_until - limits.probe_timeout)
            return min(self.probe_until - now, max(_SHORTEST_WAIT, 2 * taken))
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """The permission to call, under a fence; only one call at a time has the permission to probe."""

    fence: int
    probe: bool


Change = Callable[[Circuit, datetime], tuple[Circuit, T]]
"""A change of a circuit at a time: returns the new circuit (the same object if nothing changes) and a result. It is
pure, so it can be applied again after a concurrent change."""


def enter(limits: Limits, succeeded: int = 0) -> Change[Entry | timedelta]:
    """Tries to enter: returns an entry or the time to wait. Also counts `succeeded` calls that were not reported yet."""

    def change(circuit: Circuit, now: datetime) -> tuple[Circuit, Entry | timedelta]:
        if circuit.open_until is None:
            counted = _counted(circuit, limits, now, succeeded, 0)
            return counted, Entry(counted.fence, probe=False)
        wait = circuit.wait(now, limits)
        if wait is not None:
            return circuit, wait
        probing = replace(circuit, fence=_next(circuit, now), probe_until=now + limits.probe_timeout)
        return probing, Entry(probing.fence, probe=True)

    return change


def leave(
    entry: Entry, result: Result, limits: Limits, random: float, why: str = "", succeeded: int = 0
) -> Change[bool]:
    """Reports the result of a call; returns whether it changed the state.

    A call that entered before the last change of state has no effect.
    """

    def change(circuit: Circuit, now: datetime) -> tuple[Circuit, bool]:
        if circuit.fence != entry.fence:
            return circuit, False
        if entry.probe:
            return _after_probe(circuit, result, limits, now, random, why), True
        if circuit.open_until is not None or result is Result.ABANDONED:
            return circuit, False
        failed = result is Result.FAILED
        counted = _counted(circuit, limits, now, succeeded + (not failed), int(failed))
        if not failed:
            return (replace(counted, failures=0) if counted.failures else counted), False
        counted = replace(counted, failures=counted.failures + 1, why=sanitize(why, _WHY_LIMIT) or None)
        if counted.failures >= limits.threshold or _too_many(counted, limits, now):
            return _opened(counted, now, limits.cooldown * (1 + limits.jitter * random), why), True
        return counted, False

    return change


def trip(duration: timedelta, why: str) -> Change[None]:
    """Opens a circuit in any state for `duration`; a current probe no longer has an effect."""
    return lambda circuit, now: (_opened(circuit, now, duration, why), None)


def reset(why: str) -> Change[None]:
    """Closes a circuit in any state and clears its counts."""
    return lambda circuit, now: (_closed(circuit, now, why), None)


def _after_probe(circuit: Circuit, result: Result, limits: Limits, now: datetime, random: float, why: str) -> Circuit:
    if result is Result.SUCCEEDED:
        return _closed(circuit, now, why)
    if result is Result.FAILED:
        return _opened(circuit, now, limits.cooldown * (1 + limits.jitter * random), why)
    # The result is unknown: the next call may probe.
    return replace(circuit, fence=_next(circuit, now), probe_until=None)


def _opened(circuit: Circuit, now: datetime, duration: timedelta, why: str) -> Circuit:
    return Circuit(
        fence=_next(circuit, now),
        failures=circuit.failures,
        open_until=now + duration,
        changed_at=now if circuit.open_until is None else circuit.changed_at,
        why=sanitize(why, _WHY_LIMIT) or None,
    )


def _closed(circuit: Circuit, now: datetime, why: str) -> Circuit:
    return Circuit(fence=_next(circuit, now), changed_at=now, why=sanitize(why, _WHY_LIMIT) or None)


def _next(circuit: Circuit, now: datetime) -> int:
    # At least the current time: a stored circuit may expire or be deleted, and a fence must never repeat.
    return max(circuit.fence + 1, int(now.timestamp() * 1000))


def _counted(circuit: Circuit, limits: Limits, now: datetime, succeeded: int, failed: int) -> Circuit:
    if limits.rate is None or not succeeded + failed:
        return circuit
    calls = succeeded + failed
    start = circuit.window_at
    if start is None or now >= start + 2 * limits.window:
        return replace(circuit, window_at=now, calls=calls, failed=failed, past_calls=0, past_failed=0)
    if now >= start + limits.window:
        return replace(
            circuit,
            window_at=start + limits.window,
            calls=calls,
            failed=failed,
            past_calls=circuit.calls,
            past_failed=circuit.failed,
        )
    return replace(circuit, calls=circuit.calls + calls, failed=circuit.failed + failed)


def _too_many(circuit: Circuit, limits: Limits, now: datetime) -> bool:
    """Whether the failure rate is reached. The window slides: the covered part of the previous window counts."""
    if limits.rate is None or circuit.window_at is None:
        return False
    covered = 1 - (now - circuit.window_at) / limits.window
    calls = circuit.calls + circuit.past_calls * covered
    failed = circuit.failed + circuit.past_failed * covered
    return calls >= limits.min_calls and failed >= limits.rate * calls
