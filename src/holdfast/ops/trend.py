"""The last hour, minute by minute: what was accepted, what became of it, and what died."""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from holdfast.core.identity import uuid7
from holdfast.core.redact import redacted
from holdfast.ops.stats import loads
from holdfast.ops.work import Work, do
from holdfast.stores import trend as _trend
from holdfast.stores.counting import counts
from holdfast.stores.query import clock
from holdfast.stores.trend import Retrying, Sample

MINUTES = 60
_SAMPLE = 200
_DEAD = 5000
_LANES = 50
_WAITING = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """What was accepted within a minute and how much of it is done or dead by now; `died` counts deaths in it.

    Figures are exact up to a sample's size, and beyond it estimated from the sample: reading them costs the same on
    a busy store as on a quiet one.
    """

    at: datetime
    accepted: int
    delivered: int
    failed: int
    died: int
    estimated: bool


def trend() -> Work[list[Minute]]:
    """The last hour in minutes, oldest first; the last one is under way."""
    now = yield from do(clock())
    first = now.replace(second=0, microsecond=0) - timedelta(minutes=MINUTES - 1)
    starts = [first + timedelta(minutes=n) for n in range(MINUTES + 1)]
    edges = [uuid7(int(at.timestamp() * 1000), 0) for at in starts]
    samples = yield from do(_trend.accepted(edges, _SAMPLE))
    dead = yield from do(_trend.recent_dead(_DEAD))
    found = []
    for n, sample in enumerate(samples):
        share = _share(sample)
        found.append(
            Minute(
                at=starts[n],
                accepted=round(sample.made * share),
                delivered=round(sample.delivered * share),
                failed=round(sample.failed * share),
                died=dead.get(int(starts[n].timestamp()) // 60, 0),
                estimated=share > 1,
            )
        )
    return found


def _share(sample: Sample) -> float:
    """How many deliveries each one of a full sample stands for: positions say how many messages there were."""
    if sample.made < _SAMPLE or sample.first is None or sample.end is None:
        return 1.0
    return max(1.0, (sample.end - sample.first) / sample.messages)


def retrying() -> Work[list[Retrying]]:
    """What fails and waits for its next run, most first; of a long backlog only a part is looked at."""
    waiting = sorted(
        (load for load in loads((yield from do(counts()))) if load.pending), key=lambda load: -load.pending
    )
    lanes = [(load.queue, load.consumer) for load in waiting[:_LANES]]
    found = yield from do(_trend.retrying(lanes, _WAITING))
    return [
        replace(one, last_error=None if one.last_error is None else redacted(one.last_error, None)) for one in found
    ]
