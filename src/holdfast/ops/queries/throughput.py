"""The last hour by minute: accepted, delivered and failed deliveries, and new dead letters."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from math import sqrt
from statistics import fmean

from holdfast.core.identity import first_id
from holdfast.core.redaction.redact import redacted
from holdfast.ops.queries.stats import Load, loads
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.queries import throughput as stored
from holdfast.stores.queries.delivery_counts import DeadLetterCounts, counts, minutes_until
from holdfast.stores.queries.query import clock
from holdfast.stores.queries.throughput import Retrying, ThroughputSample

EXACT = 250_000
"""Up to this many accepted deliveries of an hour are counted exactly; more are estimated."""

_SLOTS = 4
_MESSAGES = 23
_STRETCH = 300
_LEAST_MARGIN = 0.02
_LANES = 50
_WAITING = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """The deliveries accepted in a minute, and how many of them are delivered or failed by now. `died` counts the
    deliveries that became dead letters in this minute.

    `died` and `failed` are exact. `accepted` is exact in an hour with up to `EXACT` deliveries; otherwise it is estimated,
    and with a confidence of 95 % the true number is within `margin`. `delivered` is estimated from a sample of 90 messages
    a minute (within 10 % of `accepted`), unless all messages of the sample have the same state.
    """

    at: datetime
    accepted: int
    delivered: int
    failed: int
    died: int
    margin: int = 0

    @property
    def estimated(self) -> bool:
        return self.margin > 0


@dataclass(frozen=True, slots=True)
class _Estimate:
    """The estimate of a minute from the samples of its slots."""

    made: float
    margin: float
    waiting: float


def trend(*, dead: DeadLetterCounts | None = None) -> TaskSteps[list[Minute]]:
    """The last hour by minute, oldest first; the last minute is incomplete.

    Pass `dead_letter_counts()` as `dead` to avoid counting dead letters again.
    """
    starts = minutes_until((yield from transact(clock())) if dead is None else dead.now)
    first, end = starts[0], starts[-1] + timedelta(minutes=1)
    edges = [first_id(at) for at in (*starts, end)]
    slots = [first_id(first + n * timedelta(minutes=1) / _SLOTS) for n in range(len(starts) * _SLOTS + 1)]
    samples = yield from transact(stored.accepted_samples(slots, _MESSAGES))
    estimates = _estimates(samples, 1.0)
    exact = sum(one.made for one in estimates) <= EXACT
    if not exact:
        spans = yield from transact(stored.position_gaps(edges, _STRETCH))
        estimates = _estimates(samples, min(1.0, _STRETCH * len(spans) / sum(spans)) if sum(spans) > 0 else 1.0)
    counted = yield from transact(stored.accepted_counts(edges, exact=exact))
    died = (yield from transact(stored.died(starts))) if dead is None else dead.died
    found = []
    for at, estimate, one in zip(starts, estimates, counted, strict=True):
        made = round(estimate.made) if one.made is None else one.made
        accepted = max(made, one.failed)
        waiting = min(round(estimate.waiting * accepted), accepted - one.failed)
        found.append(
            Minute(
                at=at,
                accepted=accepted,
                delivered=accepted - one.failed - waiting,
                failed=one.failed,
                died=died.get(at, 0),
                margin=round(estimate.margin) if one.made is None else 0,
            )
        )
    return found


def _estimates(samples: Sequence[ThroughputSample], density: float) -> list[_Estimate]:
    """Estimates the accepted deliveries of each minute from its slots: the number of positions, of which the share
    `density` is used, times the deliveries per message in the sample."""
    following = 1 + (samples[-1].last or 0)
    firsts = [following if sample.first is None else sample.first for sample in samples]
    spans = [max(0, later - first) for first, later in pairwise([*firsts, following])]
    minutes = []
    for n in range(0, len(samples), _SLOTS):
        own = list(zip(samples[n : n + _SLOTS], spans[n : n + _SLOTS], strict=True))
        sizes = [sample.made if sample.whole else density * span * sample.made / _MESSAGES for sample, span in own]
        made = sum(sizes)
        waiting = sum(one.waiting / one.made * size for (one, _), size in zip(own, sizes, strict=True) if one.made)
        busy = [(sample.made / _MESSAGES, density * span) for sample, span in own if not sample.whole]
        margin = 0.0
        if busy:
            # Twice the standard error; the spread of deliveries per message within a slot is assumed to be that between slots.
            spread = 2 * _deviation([fan_out for fan_out, _ in busy]) * sqrt(sum(messages**2 for _, messages in busy))
            margin = max(spread, _LEAST_MARGIN * made, 1.0)
        minutes.append(_Estimate(made, margin, waiting / made if made else 0.0))
    return minutes


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
