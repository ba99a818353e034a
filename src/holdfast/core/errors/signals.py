"""Signals: a handler raises or returns one to choose what happens to its delivery."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from holdfast.core.errors.root import HoldfastError
from holdfast.core.errors.validation import ConfigurationError
from holdfast.core.values.duration import Duration, clamp_duration, format_duration, to_timedelta
from holdfast.core.values.text import safe_str, type_name


class Signal(HoldfastError):
    """A handler raises or returns a signal to choose what happens to its delivery."""


class TerminalError(Signal):
    """Dead-letter this delivery now; another run cannot succeed."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryAfter(Signal):
    """Retry after `delay`, within the remaining attempts and the limits of the retry policy.

    The number often comes from a header of another system. A negative delay therefore means now, and a delay that is
    too long means the longest possible one. Only a value that is not a number is refused.
    """

    def __init__(self, delay: Duration, reason: str = "") -> None:
        self.delay, self.reason = clamp_duration(delay, name="delay"), reason
        super().__init__(self.delay, reason)

    def __str__(self) -> str:
        text = f"retry after {format_duration(self.delay)}"
        return f"{text}: {self.reason}" if self.reason else text


class Snooze(Signal):
    """Run again after `delay`. This run does not count as a failure, and its attempt is returned."""

    def __init__(self, delay: Duration) -> None:
        self.delay = to_timedelta(delay, name="delay")
        super().__init__(self.delay)

    def __str__(self) -> str:
        return f"snooze for {format_duration(self.delay)}"


class Cancel(Signal):
    """Discard this delivery. It is recorded, does not count as failed, and raises no alert."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class Outage(Signal):
    """Your own `resource` is unavailable: block this consumer until it is available again, spend no attempt."""

    def __init__(self, resource: str) -> None:
        super().__init__(resource)
        self.resource = resource

    def __str__(self) -> str:
        return f"{self.resource} is unavailable"


class CircuitOpen(Signal):
    """The circuit `name` is open: park this delivery until the circuit may close, spend no attempt.

    `until` is a timedelta (the time until it may close) or an aware datetime.
    """

    def __init__(self, name: str, until: Duration | datetime) -> None:
        self.name = name
        self.until: timedelta | datetime
        if isinstance(until, datetime):
            if until.utcoffset() is None:
                raise ConfigurationError(
                    f"CircuitOpen({name!r}) has a naive datetime, {until}; use one with a time zone"
                )
            self.until = until
        else:
            self.until = clamp_duration(until, name="until")
        super().__init__(name, self.until)

    def __str__(self) -> str:
        if isinstance(self.until, datetime):
            return f"circuit {self.name} is open until {self.until.isoformat()}"
        return f"circuit {self.name} is open for {format_duration(self.until)}"


class BatchError(HoldfastError):
    """Some items of a batch failed: `errors` maps the index of each to its exception or signal. The others are delivered.

    Examples:
        >>> raise BatchError({3: ValueError("no such user")})
        Traceback (most recent call last):
        holdfast.BatchError: 1 item of the batch failed; item 3: ValueError: no such user
    """

    def __init__(self, errors: Mapping[int, BaseException]) -> None:
        if not isinstance(errors, Mapping) or not errors:
            raise ConfigurationError(
                f"BatchError got {errors!r}; give a dict of the failed items, such as {{3: error}}, and return normally "
                "if none failed"
            )
        for index, error in errors.items():
            if isinstance(index, bool) or not isinstance(index, int) or not isinstance(error, BaseException):
                raise ConfigurationError(
                    f"BatchError got {{{index!r}: {error!r}}}; map the index of each failed item to an exception"
                )
        self.errors = dict(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        failed = "1 item" if len(self.errors) == 1 else f"{len(self.errors)} items"
        index, error = next(iter(self.errors.items()))
        return f"{failed} of the batch failed; item {index}: {type_name(type(error))}: {safe_str(error)[:200]}"
