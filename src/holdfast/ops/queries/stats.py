"""Counts of pending, running and failed deliveries, and conditions on them that a script can check."""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.bounded_count import NONE, BoundedCount, is_or_more, total
from holdfast.core.values.duration import format_duration, to_timedelta
from holdfast.ops.resources.relays import RelayState, relays
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.deliveries.worker import live_workers
from holdfast.stores.messages.intake import IntakeReport, intakes
from holdfast.stores.messages.registry import consumers
from holdfast.stores.queries.delivery_counts import DeadLetterCounts, counts
from holdfast.stores.queries.query import Count, clock, paused_queues

_ZERO = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Counts of a consumer's deliveries in a queue. `lag` is how long the oldest due delivery has waited.

    Each count is a `BoundedCount`, a lower bound when it is `or_more`.
    """

    queue: str
    consumer: str
    pending: BoundedCount = NONE
    suspects: BoundedCount = NONE
    in_flight: BoundedCount = NONE
    failed: BoundedCount = NONE
    discarded: BoundedCount = NONE
    lag: timedelta = _ZERO


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The whole store at one moment. `pending` includes retry waits and suspects."""

    now: datetime
    loads: tuple[Load, ...]
    workers: int
    paused_queues: tuple[str, ...]
    paused_consumers: tuple[str, ...]
    blocked_consumers: tuple[str, ...]
    relays: tuple[RelayState, ...] = ()
    sources: tuple[IntakeReport, ...] = ()

    @property
    def pending(self) -> BoundedCount:
        return total(load.pending for load in self.loads)

    @property
    def suspects(self) -> BoundedCount:
        return total(load.suspects for load in self.loads)

    @property
    def in_flight(self) -> BoundedCount:
        return total(load.in_flight for load in self.loads)

    @property
    def failed(self) -> BoundedCount:
        return total(load.failed for load in self.loads)

    @property
    def discarded(self) -> BoundedCount:
        return total(load.discarded for load in self.loads)

    @property
    def oldest(self) -> timedelta:
        """The waiting time of the oldest due delivery or event to relay; zero if there is none."""
        lags = [load.lag for load in self.loads] + [relay.lag for relay in self.relays]
        return max(lags, default=_ZERO)


def stats(*, exact: bool = False, dead: DeadLetterCounts | None = None) -> TaskSteps[Stats]:
    """Pending, running and failed deliveries by queue and consumer. Reads partial indexes, never delivered rows.

    Counts stop at a bound, so that the time does not depend on the size of the store; `exact` counts completely.
    Pass `dead_letter_counts()` as `dead` to avoid counting dead letters again.
    """
    rows = yield from transact(counts(exact=exact, dead=dead))
    now = yield from transact(clock())
    known = yield from transact(consumers())
    alive = yield from transact(live_workers())
    return Stats(
        now=now,
        loads=tuple(loads(rows)),
        workers=len(alive),
        paused_queues=tuple(sorted((yield from transact(paused_queues())))),
        paused_consumers=tuple(one.name for one in known if one.paused_at is not None),
        blocked_consumers=tuple(one.name for one in known if one.blocked_until is not None and one.blocked_until > now),
        relays=tuple((yield from relays())),
        sources=tuple((yield from transact(intakes()))),
    )


def loads(rows: Sequence[Count]) -> list[Load]:
    """Counts by state, grouped by queue and consumer."""
    found: dict[tuple[str, str], dict[str, Count]] = {}
    for row in rows:
        found.setdefault((row.queue, row.consumer), {})[row.state] = row
    return [_load(queue, consumer, states) for (queue, consumer), states in sorted(found.items())]


def _load(queue: str, consumer: str, states: dict[str, Count]) -> Load:
    def count(state: str) -> BoundedCount:
        return states[state].count if state in states else NONE

    waiting = [states[state] for state in ("pending", "suspect") if state in states]
    lags = [row.now - row.oldest_at for row in waiting if row.oldest_at is not None]
    return Load(
        queue=queue,
        consumer=consumer,
        pending=count("pending") + count("suspect"),
        suspects=count("suspect"),
        in_flight=count("in_flight"),
        failed=count("failed"),
        discarded=count("discarded"),
        lag=max([_ZERO, *lags]),
    )


_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "=": operator.eq}
_COUNTS = ("failed", "pending", "in_flight", "discarded", "suspects", "workers")
_CONDITION = re.compile(r"\s*(\w+)\s*(>=|<=|>|<|=)\s*(.+?)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on a statistic, such as `failed>10` or `oldest>5m`."""

    figure: str
    comparison: str
    bound: int | timedelta

    def holds(self, stats: Stats) -> bool:
        return bool(_COMPARE[self.comparison](getattr(stats, self.figure), self.bound))

    def settled(self, stats: Stats) -> bool:
        """Whether an exact count would not change the result of `holds`; a large count may be a lower bound."""
        figure = getattr(stats, self.figure)
        if not is_or_more(figure) or figure > self.bound:
            return True
        return figure == self.bound and self.comparison in (">=", "<")

    def describe(self, stats: Stats) -> str:
        """The statistic and its bound, for people."""
        return f"{self.figure} is {_shown(getattr(stats, self.figure))} ({self.comparison} {_shown(self.bound)})"


def read_conditions(text: str) -> list[Condition]:
    """The conditions in `failed>10,oldest>5m`."""
    return [_condition(part) for part in text.split(",")]


def _condition(text: str) -> Condition:
    match = _CONDITION.fullmatch(text)
    if match is not None and match[3][0] in "<>=!":
        written = match[2] + match[3][0]
        meant = written[::-1] if written[::-1] in _COMPARE else match[2]
        raise ConfigurationError(
            f"condition {text!r} has the comparison {written}; write one of > >= < <= =, such as {match[1]}{meant}10"
        )
    if match is None or match[1] not in (*_COUNTS, "oldest"):
        raise ConfigurationError(
            f"condition {text!r} cannot be read; use {', '.join(_COUNTS)} or oldest with > >= < <= = and a bound, "
            "such as failed>10,oldest>5m"
        )
    if match[1] == "oldest":
        return Condition(match[1], match[2], to_timedelta(match[3], name="oldest"))
    if not match[3].isdecimal():
        raise ConfigurationError(f"condition {text!r} needs a whole number, such as {match[1]}{match[2]}10")
    return Condition(match[1], match[2], int(match[3]))


def _shown(value: int | timedelta) -> str:
    if isinstance(value, int):
        return f"{value}"
    return format_duration(timedelta(seconds=round(value.total_seconds())))
