"""The charts of a time range, and the links that narrow, widen and move the range without a script."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from holdfast.interfaces.console.pages import chart
from holdfast.interfaces.console.request import ConsoleRequest
from holdfast.interfaces.presentation.filters import parse_range
from holdfast.ops.queries.throughput import TrendSlot
from holdfast.stores.queries.delivery_counts import DeadLetterCounts

RANGES = (("15m", "15 min"), ("1h", "1 h"), ("6h", "6 h"), ("1d", "24 h"), ("7d", "7 days"), ("30d", "30 days"))
_DEFAULT = "1h"
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class TrendRange:
    """The range of the charts on a page. Each link is None if it would show the same range."""

    chosen: dict[str, str]
    axis: chart.TimeAxis
    earlier: str
    later: str | None
    wider: str
    messages: str
    dead: str


@dataclass(frozen=True, slots=True)
class Figure:
    """A row of the table under the charts: a time slot, its texts, and where its bar leads to."""

    at: str
    accepted: str
    delivered: int
    failed: int
    died: str
    link: str


async def trend_charts(
    request: ConsoleRequest, now: datetime, dead: DeadLetterCounts | None
) -> tuple[list[chart.Chart], TrendRange, list[Figure]]:
    """The charts of the range in the URL, the last hour by default."""
    chosen = {"since": _DEFAULT} | request.chosen("since", "until")
    slots = await _slots(request, chosen, now, dead)
    axis = chart.time_axis(slots, now)
    charts = [
        chart.throughput(slots, lambda slot: _bar_link(request, "/messages", slot)),
        chart.failures(slots, lambda slot: _bar_link(request, "/dead", slot)),
    ]
    if axis.until >= now and now - axis.since <= _HOUR + slots[0].width:
        charts.append(chart.age(request.cache.history, axis, now))
    figures = [
        Figure(
            chart.slot_text(slot),
            chart.accepted_text(slot),
            slot.delivered,
            slot.failed,
            chart.died_text(slot),
            _bar_link(request, "/messages", slot),
        )
        for slot in slots
        if slot.accepted or slot.died
    ]
    return charts, _range(request, chosen, axis, now), figures


async def _slots(
    request: ConsoleRequest, chosen: dict[str, str], now: datetime, dead: DeadLetterCounts | None
) -> Sequence[TrendSlot]:
    times = parse_range(chosen, now)
    if chosen == {"since": _DEFAULT}:
        return await request.cache.read("trend", lambda ops: ops.trend(dead=dead))
    if "until" not in chosen and chosen["since"] in dict(RANGES):
        return await request.cache.read(f"trend {chosen['since']}", lambda ops: ops.trend(since=times["since"]))
    # Not cached: there are as many as users can write.
    return await request.ops.trend(since=times["since"], until=min(times.get("until", now), now))


def _range(request: ConsoleRequest, chosen: dict[str, str], axis: chart.TimeAxis, now: datetime) -> TrendRange:
    span = axis.until - axis.since
    ends_now = axis.until >= now
    given = {"since": iso(axis.since), "until": None if ends_now else iso(axis.until)}
    return TrendRange(
        chosen=chosen,
        axis=axis,
        earlier=_link(request, axis.since - span / 2, axis.until - span / 2, now),
        later=None if ends_now else _link(request, axis.since + span / 2, axis.until + span / 2, now),
        wider=_link(request, axis.since - (2 * span if ends_now else span), axis.until + span, now),
        messages=request.url("/messages", **given),
        dead=request.url("/dead", **given),
    )


def _bar_link(request: ConsoleRequest, path: str, slot: TrendSlot) -> str:
    """A bar of more than a minute leads to the chart of its time, a shorter one to the list of what it counts."""
    times = {"since": iso(slot.at), "until": iso(slot.until)}
    return request.with_query(**times) if slot.width > timedelta(minutes=1) else request.url(path, **times)


def _link(request: ConsoleRequest, since: datetime, until: datetime, now: datetime) -> str:
    return request.with_query(since=iso(since), until=None if until >= now else iso(until))


def iso(at: datetime) -> str:
    """A time in UTC as the parameters of pages have it."""
    at = at.astimezone(UTC)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ" if at.second else "%Y-%m-%dT%H:%MZ")
