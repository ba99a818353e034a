"""Circuits: when a dependency counts as down, and who may look whether it is back.

A circuit is a small value and these functions are its only rule. Whoever keeps it (memory, Redis, a database) reads
it, applies a function with a clock of its own and writes the result, all at once. So the rule is the same everywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypeVar

from holdfast.core.errors import ConfigurationError
from holdfast.core.text import sanitise

T = TypeVar("T")

_WHY_LIMIT = 300
_SHORTEST_LOOK = timedelta(seconds=2)


class Result(StrEnum):
    """How a call through a circuit ended: answered, failed, or not known because it was broken off."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"


class CircuitState(StrEnum):
    """Closed: calls pass. Open: none does. Half open: one may look. Probing: one is looking."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"
    PROBING = "probing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a circuit opens, for how long, and how long a probe may take.

    It opens after `threshold` failures in a row, or when `rate` of at least `min_calls` calls within `window` failed.
    `jitter` makes the cooldown longer by up to that part of it.
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
                raise ConfigurationError(f"{name} is {value!r}; give a whole number from {low}")
        if not 0 <= self.jitter <= 1:
            raise ConfigurationError(f"jitter is {self.jitter!r}; give a part of the cooldown from 0 to 1")
        if self.rate is not None and not 0 < self.rate <= 1:
            raise ConfigurationError(f"rate is {self.rate!r}; give a part of the calls above 0, up to 1")
        for name in ("cooldown", "probe_timeout", "window"):
            if getattr(self, name) <= timedelta(0):
                raise ConfigurationError(f"{name} is {getattr(self, name)}; give a duration above zero")


@dataclass(frozen=True, slots=True, kw_only=True)
class Circuit:
    """What is kept of one circuit.

    `fence` rises with every change of state, so that who entered before cannot decide after. `failures` are those in
    a row. `calls` and `failed` count since `window_at`, the `past_` ones in the window before it.
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
        """How it stands at `now`."""
        if self.open_until is None:
            return CircuitState.CLOSED
        if self.open_until > now:
            return CircuitState.OPEN
        if self.probe_until is not None and self.probe_until > now:
            return CircuitState.PROBING
        return CircuitState.HALF_OPEN

    def wait(self, now: datetime, limits: Limits) -> timedelta | None:
        """How long until it is worth asking to pass; None when somebody may now.

        A probe mostly ends long before its deadline. So who asks meanwhile comes back after twice what it has taken so
        far: soon after it ended well, and few times while it hangs.
        """
        state = self.state(now)
        if state is CircuitState.OPEN and self.open_until is not None:
            return self.open_until - now
        if state is CircuitState.PROBING and self.probe_until is not None:
            taken = now - (self.probe_until - limits.probe_timeout)
            return min(self.probe_until - now, max(_SHORTEST_LOOK, 2 * taken))
        return None


@dataclass(frozen=True, slots=True)
class Entry:
    """Leave to call, given under a fence; a probe's leave is given to one at a time."""

    fence: int
    probe: bool


Change = Callable[[Circuit, datetime], tuple[Circuit, T]]
"""What is done to a circuit at a time: what it becomes (the same object when nothing changes), and what came of it.
Pure, so it can be applied again when somebody else was faster."""


def enter(limits: Limits, succeeded: int = 0) -> Change[Entry | timedelta]:
    """Asks to pass: leave, or how long to wait. `succeeded` calls that were not told yet are counted."""

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
    """Tells how a call ended, and learns whether that changed the state.

    One that entered before the last change of state changes nothing.
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
        counted = replace(counted, failures=counted.failures + 1, why=sanitise(why, _WHY_LIMIT) or None)
        if counted.failures >= limits.threshold or _too_many(counted, limits, now):
            return _opened(counted, now, limits.cooldown * (1 + limits.jitter * random), why), True
        return counted, False

    return change


def trip(duration: timedelta, why: str) -> Change[None]:
    """Opens it for `duration`, whatever it was; a probe under way decides nothing any more."""
    return lambda circuit, now: (_opened(circuit, now, duration, why), None)


def reset(why: str) -> Change[None]:
    """Closes it, whatever it was, and forgets what was counted."""
    return lambda circuit, now: (_closed(circuit, now, why), None)


def _after_probe(circuit: Circuit, result: Result, limits: Limits, now: datetime, random: float, why: str) -> Circuit:
    if result is Result.SUCCEEDED:
        return _closed(circuit, now, why)
    if result is Result.FAILED:
        return _opened(circuit, now, limits.cooldown * (1 + limits.jitter * random), why)
    # Nothing was learnt: the next who asks may look.
    return replace(circuit, fence=_next(circuit, now), probe_until=None)


def _opened(circuit: Circuit, now: datetime, duration: timedelta, why: str) -> Circuit:
    return Circuit(
        fence=_next(circuit, now),
        failures=circuit.failures,
        open_until=now + duration,
        changed_at=now if circuit.open_until is None else circuit.changed_at,
        why=sanitise(why, _WHY_LIMIT) or None,
    )


def _closed(circuit: Circuit, now: datetime, why: str) -> Circuit:
    return Circuit(fence=_next(circuit, now), changed_at=now, why=sanitise(why, _WHY_LIMIT) or None)


def _next(circuit: Circuit, now: datetime) -> int:
    # Not merely one more: what is kept may expire or be deleted, and a fence must not come back.
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
    """Whether the rate is reached. The window slides: of the one before, the part that it still covers counts."""
    if limits.rate is None or circuit.window_at is None:
        return False
    covered = 1 - (now - circuit.window_at) / limits.window
    calls = circuit.calls + circuit.past_calls * covered
    failed = circuit.failed + circuit.past_failed * covered
    return calls >= limits.min_calls and failed >= limits.rate * calls
