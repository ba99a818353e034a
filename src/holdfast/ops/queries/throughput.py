"""Time slots of any range: accepted, delivered and failed deliveries, and new dead letters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import ceil, sqrt
from statistics import fmean

from holdfast.core.errors import ConfigurationError
from holdfast.core.identity import first_id
from holdfast.core.redaction.redact import redacted
from holdfast.ops.queries.stats import Load, loads
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.queries import throughput as stored
from holdfast.stores.queries.delivery_counts import BUDGET, DeadLetterCounts, counts, group_died, minutes_until
from holdfast.stores.queries.query import clock
from holdfast.stores.queries.throughput import Retrying, ThroughputSample

EXACT = 250_000
"""Up to this many accepted deliveries of a range are counted exactly; more are estimated."""
MAX_SLOTS = 60

_SLOTS = 4
_MESSAGES = 23
_STRETCH = 300
_LEAST_MARGIN = 0.02
_LANES = 50
_WAITING = 500
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


_WIDTHS = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrendSlot:
    """The deliveries accepted in a time slot, and how many of them are delivered or failed by now. `died` counts the
    deliveries that became dead letters in this slot.

    `died` and `failed` are exact in a store with up to 500,000 failed deliveries, otherwise lower bounds if `or_more`.
    `accepted` is exact in a range with up to `EXACT` deliveries. Otherwise it is an estimate; in a range of an hour
    the true number is within `margin` with a confidence of 95 %. `delivered` is estimated from a sample of 90 messages
    a slot (within 10 % of `accepted`), unless all messages of the sample have the same state.
    """

    at: datetime
    width: timedelta
    accepted: int
    delivered: int
    failed: int
    died: int
    margin: int = 0
    or_more: bool = False

    @property
    def estimated(self) -> bool:
        return self.margin > 0

    @property
    def until(self) -> datetime:
        return self.at + self.width


@dataclass(frozen=True, slots=True)
class _Estimate:
    """The estimate of a slot from the samples of its parts."""

    made: float
    margin: float
    waiting: float


def trend(
    *, since: datetime | None = None, until: datetime | None = None, dead: DeadLetterCounts | None = None
) -> TaskSteps[list[TrendSlot]]:
    """A range in at most 61 time slots, oldest first: the last hour by minute, if none is given. The last slot may be
    incomplete. The time does not depend on the length of the range.

    Without a range, pass `dead_letter_counts()` as `dead` to avoid counting dead letters again.
    """
    now = (yield from transact(clock())) if dead is None else dead.now
    starts, width = _hour(now) if since is None else slots_of(since, until or now)
    edges = [first_id(at) for at in (*starts, starts[-1] + width)]
    parts = [first_id(starts[0] + n * width / _SLOTS) for n in range(len(starts) * _SLOTS + 1)]
    samples = yield from transact(stored.accepted_samples(parts, _MESSAGES))
    estimates = _estimates(samples, [1.0] * len(starts))
    exact = sum(one.made for one in estimates) <= EXACT
    if not exact:
        gaps = yield from transact(stored.position_gaps(edges, _STRETCH))
        estimates = _estimates(samples, _densities(gaps, len(starts)))
    bound = yield from transact(stored.slot_bound(len(starts)))
    counted = yield from transact(stored.accepted_counts(edges, exact=exact, bound=bound))
    died: Mapping[datetime, int]
    if dead is None or since is not None:
        died = yield from transact(stored.died(starts, width, bound))
    else:
        died, bound = dead.died, BUDGET
    found = []
    for at, estimate, one in zip(starts, estimates, counted, strict=True):
        made = round(estimate.made) if one.made is None else one.made
        accepted = max(made, one.failed)
        waiting = min(round(estimate.waiting * accepted), accepted - one.failed)
        found.append(
            TrendSlot(
                at=at,
                width=width,
                accepted=accepted,
                delivered=accepted - one.failed - waiting,
                failed=one.failed,
                died=died.get(at, 0),
                margin=round(estimate.margin) if one.made is None else 0,
                or_more=bound < BUDGET and max(one.failed, died.get(at, 0)) >= bound,
            )
        )
    return found


def group_trend(consumer: str, group: str, *, since: datetime, until: datetime) -> TaskSteps[list[TrendSlot]]:
    """The new dead letters of a failure group in the time slots of a range. The time grows with the group."""
    starts, width = slots_of(since, until)
    died = yield from transact(group_died(consumer, group, starts, width))
    return [TrendSlot(at=at, width=width, accepted=0, delivered=0, failed=0, died=died.get(at, 0)) for at in starts]


def slots_of(since: datetime, until: datetime) -> tuple[list[datetime], timedelta]:
    """The time slots that cover a range from 1970 on: their starts, which are multiples of their width since then, and their
    width."""
    since = max(since, _EPOCH)
    if since >= until:
        raise ConfigurationError("`since` must be before `until`")
    span = until - since
    width = next((one for one in _WIDTHS if span <= MAX_SLOTS * one), None) or timedelta(
        days=ceil(span / timedelta(days=MAX_SLOTS))
    )
    first = _EPOCH + (since - _EPOCH) // width * width
    return [first + n * width for n in range(ceil((until - first) / width))], width


def _hour(now: datetime) -> tuple[list[datetime], timedelta]:
    return minutes_until(now), timedelta(minutes=1)


def _densities(gaps: Mapping[int, int], slots: int) -> list[float]:
    """The share of positions that is used in each slot. A slot with few messages gets the average of the others."""
    average = min(1.0, _STRETCH * len(gaps) / sum(gaps.values())) if sum(gaps.values()) > 0 else 1.0
    return [min(1.0, _STRETCH / gaps[n]) if gaps.get(n) else average for n in range(slots)]


def _estimates(samples: Sequence[ThroughputSample], densities: Sequence[float]) -> list[_Estimate]:
    """Estimates the accepted deliveries of each slot from the samples of its parts: the number of positions, of which the
    share in `densities` is used, times the deliveries per message in the sample."""
    following = 1 + (samples[-1].last or 0)
    firsts = [following if sample.first is None else sample.first for sample in samples]
    spans = [max(0, later - first) for first, later in pairwise([*firsts, following])]
    slots = []
    for density, n in zip(densities, range(0, len(samples), _SLOTS), strict=True):
        own = list(zip(samples[n : n + _SLOTS], spans[n : n + _SLOTS], strict=True))
        sizes = [sample.made if sample.whole else density * span * sample.made / _MESSAGES for sample, span in own]
        made = sum(sizes)
        waiting = sum(one.waiting / one.made * size for (one, _), size in zip(own, sizes, strict=True) if one.made)
        busy = [(sample.made / _MESSAGES, density * span) for sample, span in own if not sample.whole]
        margin = 0.0
        if busy:
            # Twice the standard error; the spread of deliveries per message within a part is assumed to be that between parts.
            spread = 2 * _deviation([fan_out for fan_out, _ in busy]) * sqrt(sum(messages**2 for _, messages in busy))
            margin = max(spread, _LEAST_MARGIN * made, 1.0)
        slots.append(_Estimate(made, margin, waiting / made if made else 0.0))
    return slots


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation in floats; the exact arithmetic of `statistics` takes milliseconds for an hour."""
    mean = fmean(values)
    return sqrt(fmean((value - mean) ** 2 for value in values))


def retrying(*, known_loads: Sequence[Load] | None = None) -> TaskSteps[list[Retrying]]:
    """Failed deliveries that wait for a retry, by error, the most frequent first; reads only a part of a long backlog.

    Pass `stats().loads` as `known_loads` to avoid counting again.
    """
    if known_loads is None:
        known_loads = loads((yield from transact(counts())))
    waiting = sorted((load for load in known_loads if load.pending), key=lambda load: -load.pending)
    lanes = [(load.queue, load.consumer) for load in waiting[:_LANES]]
    found = yield from transact(stored.retrying(lanes, _WAITING))
    return [
        replace(one, last_error=None if one.last_error is None else redacted(one.last_error, None)) for one in found
    ]
