"""Retry policies: the number of runs, and the waits between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Self, TypeVar

import orjson

from holdfast.core.errors import ConfigurationError, InvalidDuration
from holdfast.core.values.arguments import checks_options, requires_init_options
from holdfast.core.values.duration import MAX_DURATION, Duration, format_duration, to_timedelta

MAX_ATTEMPTS = 10_000
RETRY_AFTER_CAP = timedelta(hours=1)

_ZERO = timedelta(0)
_BUILDERS = "RetryPolicy.exponential(attempts=5), .polynomial(), .schedule(), .fixed() or .none()"
_Word = TypeVar("_Word", bound=StrEnum)


class Backoff(StrEnum):
    """The growth of the wait from one attempt to the next."""

    EXPONENTIAL = "exponential"
    POLYNOMIAL = "polynomial"
    SCHEDULE = "schedule"
    FIXED = "fixed"


class Jitter(StrEnum):
    """The random part of a wait: all of it, its upper half, or none."""

    FULL = "full"
    EQUAL = "equal"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Wait:
    """The range of the wait after one failed attempt; jitter selects a value in it."""

    after_attempt: int
    shortest: timedelta
    longest: timedelta

    def __str__(self) -> str:
        if self.shortest == self.longest:
            return format_duration(self.longest)
        return f"{format_duration(self.shortest)}..{format_duration(self.longest)}"


@requires_init_options(kind=f"build the policy with {_BUILDERS}")
@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The number of runs of a delivery and the waits between them. Policies are compared by value.

    Build one with `exponential`, `polynomial`, `schedule`, `fixed` or `none`. `attempts` counts runs,
    never retries. A policy is stored with its consumer, so that any worker can decide for it.
    """

    kind: Backoff
    attempts: int
    base: timedelta = _ZERO
    factor: float = 1.0
    power: float = 1.0
    cap: timedelta = MAX_DURATION
    jitter: Jitter = Jitter.NONE
    waits: tuple[timedelta, ...] = ()
    retry_after_cap: timedelta = RETRY_AFTER_CAP

    def __post_init__(self) -> None:
        if not isinstance(self.kind, Backoff):
            raise ConfigurationError(f"retry policy has kind {self.kind!r}; build it with {_BUILDERS}")
        check_attempts(self.attempts)
        _check_number("factor", self.factor, 1, 1000)
        _check_number("power", self.power, 0, 100)

    @classmethod
    @checks_options
    def exponential(
        cls,
        attempts: int = 5,
        base: Duration = 1,
        factor: float = 2,
        cap: Duration = "5m",
        jitter: str = "full",
        *,
        retry_after_cap: Duration = RETRY_AFTER_CAP,
    ) -> Self:
        """Wait base, base·factor, base·factor² …, at most `cap`, with `jitter`."""
        return cls(
            kind=Backoff.EXPONENTIAL,
            attempts=attempts,
            base=to_timedelta(base, name="base"),
            factor=factor,
            cap=to_timedelta(cap, name="cap"),
            jitter=_word("jitter", jitter, Jitter),
            retry_after_cap=to_timedelta(retry_after_cap, name="retry_after_cap"),
        )

    @classmethod
    @checks_options
    def polynomial(
        cls,
        attempts: int = 3,
        power: float = 2,
        cap: Duration = "1d",
        jitter: str = "none",
        *,
        retry_after_cap: Duration = RETRY_AFTER_CAP,
    ) -> Self:
        """Wait attempt^`power` seconds: 1, 4, 9 … with the default of 2, at most `cap`."""
        return cls(
            kind=Backoff.POLYNOMIAL,
            attempts=attempts,
            power=power,
            cap=to_timedelta(cap, name="cap"),
            jitter=_word("jitter", jitter, Jitter),
            retry_after_cap=to_timedelta(retry_after_cap, name="retry_after_cap"),
        )

    @classmethod
    @checks_options
    def schedule(cls, waits: Iterable[Duration], *, retry_after_cap: Duration = RETRY_AFTER_CAP) -> Self:
        """Wait exactly as listed; three waits mean four runs."""
        if isinstance(waits, str) or not isinstance(waits, Iterable):
            raise ConfigurationError(
                f"retry policy has waits {waits!r}; give a list of waits, such as [1, '30s', '5m']"
            )
        listed = tuple(to_timedelta(wait, name="wait") for wait in waits)
        cap = to_timedelta(retry_after_cap, name="retry_after_cap")
        return cls(kind=Backoff.SCHEDULE, attempts=len(listed) + 1, waits=listed, retry_after_cap=cap)

    @classmethod
    @checks_options
    def fixed(
        cls,
        delay: Duration,
        attempts: int = 5,
        jitter: str = "none",
        *,
        retry_after_cap: Duration = RETRY_AFTER_CAP,
    ) -> Self:
        """Wait the same `delay` before each further run."""
        return cls(
            kind=Backoff.FIXED,
            attempts=attempts,
            base=to_timedelta(delay, name="delay"),
            jitter=_word("jitter", jitter, Jitter),
            retry_after_cap=to_timedelta(retry_after_cap, name="retry_after_cap"),
        )

    @classmethod
    def none(cls) -> Self:
        """Run once, without retries."""
        return cls.schedule([])

    def delay(self, attempt: int, random: float) -> timedelta:
        """Return the wait after attempt number `attempt` (from 1) failed; `random` in [0, 1) selects the jitter."""
        if not 0 <= random < 1:
            raise ValueError(f"random is {random}; give a number from 0 up to, not including, 1")
        shortest, longest = self._range(attempt)
        return shortest + (longest - shortest) * random

    def clamp(self, after: timedelta) -> timedelta:
        """Return a wait that another system requested (Retry-After), between zero and `retry_after_cap`."""
        return min(max(after, _ZERO), self.retry_after_cap)

    def preview(self) -> list[Wait]:
        """Return the wait after each attempt except the last, for display.

        Examples:
            >>> [str(wait) for wait in RetryPolicy.schedule([0, "1s", "2s"]).preview()]
            ['0s', '1s', '2s']
        """
        return [Wait(attempt, *self._range(attempt)) for attempt in range(1, self.attempts)]

    def to_json(self) -> dict[str, object]:
        """Return a small dict for the database: durations in seconds, without default values."""
        stored: dict[str, object] = {"kind": self.kind.value, "attempts": self.attempts}
        if self.base:
            stored["base"] = self.base.total_seconds()
        if self.kind is Backoff.EXPONENTIAL:
            stored["factor"] = self.factor
        if self.kind is Backoff.POLYNOMIAL:
            stored["power"] = self.power
        if self.cap != MAX_DURATION:
            stored["cap"] = self.cap.total_seconds()
        if self.jitter is not Jitter.NONE:
            stored["jitter"] = self.jitter.value
        if self.kind is Backoff.SCHEDULE:
            stored["waits"] = [wait.total_seconds() for wait in self.waits]
        if self.retry_after_cap != RETRY_AFTER_CAP:
            stored["retry_after_cap"] = self.retry_after_cap.total_seconds()
        return stored

    @classmethod
    def from_json(cls, stored: Mapping[str, object]) -> Self:
        """Return the policy that `to_json` of any release wrote; unknown fields are ignored."""
        waits = stored.get("waits", [])
        if not isinstance(waits, list):
            raise ConfigurationError(f"stored retry policy has waits {waits!r}; it must be a list of seconds")
        return cls(
            kind=_word("kind", stored.get("kind"), Backoff),
            attempts=check_attempts(stored.get("attempts")),
            base=_seconds("base", stored.get("base", 0)),
            factor=_check_number("factor", stored.get("factor", 1.0), 1, 1000),
            power=_check_number("power", stored.get("power", 1.0), 0, 100),
            cap=_seconds("cap", stored.get("cap", MAX_DURATION.total_seconds())),
            jitter=_word("jitter", stored.get("jitter", "none"), Jitter),
            waits=tuple(_seconds("wait", wait) for wait in waits),
            retry_after_cap=_seconds("retry_after_cap", stored.get("retry_after_cap", RETRY_AFTER_CAP.total_seconds())),
        )

    def _range(self, attempt: int) -> tuple[timedelta, timedelta]:
        longest = min(self._wait(max(attempt, 1)), self.cap)
        if self.jitter is Jitter.FULL:
            return _ZERO, longest
        return (longest / 2 if self.jitter is Jitter.EQUAL else longest), longest

    def _wait(self, attempt: int) -> timedelta:
        if self.kind is Backoff.FIXED:
            return self.base
        if self.kind is Backoff.SCHEDULE:
            # A message may have more attempts than the list has waits; then the last wait repeats.
            return self.waits[min(attempt, len(self.waits)) - 1] if self.waits else _ZERO
        try:
            if self.kind is Backoff.EXPONENTIAL:
                return self.base * math.pow(self.factor, attempt - 1)
            return timedelta(seconds=math.pow(attempt, self.power))
        except OverflowError:
            return self.cap


def check_policy(name: str, value: object) -> RetryPolicy:
    """Return `value` if it is a retry policy, else raise `ConfigurationError` with a suggestion."""
    if isinstance(value, RetryPolicy):
        return value
    if isinstance(value, int) and value > 1:
        hint = f"for {value} runs give RetryPolicy.exponential(attempts={value})"
    else:
        hint = "give a policy such as RetryPolicy.exponential(attempts=5); RetryPolicy.none() runs once"
    raise ConfigurationError(f"{name} is {value!r}; {hint}")


def check_attempts(value: object, *, name: str = "attempts") -> int:
    """Return `value` if it is a valid number of runs, else raise `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_ATTEMPTS:
        raise ConfigurationError(f"{name} is {value!r}; give a whole number of runs from 1 to {MAX_ATTEMPTS:,}")
    return value


def _check_number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ConfigurationError(f"retry policy has {name} {value!r}; give a number from {low} to {high}")
    return value


def _word(name: str, value: object, words: type[_Word]) -> _Word:
    if isinstance(value, str) and value in list(words):
        return words(value)
    raise ConfigurationError(f"retry policy has {name} {value!r}; use one of {', '.join(words)}")


def _seconds(name: str, value: object) -> timedelta:
    if not isinstance(value, int | float):
        raise InvalidDuration(name, value, "is not a number of seconds")
    return to_timedelta(value, name=name)


@lru_cache(maxsize=1024)
def stored_policy(text: str) -> RetryPolicy:
    """Return the policy from the JSON text of `to_json`. Cached: thousands of consumers share a few policies."""
    return RetryPolicy.from_json(orjson.loads(text))
