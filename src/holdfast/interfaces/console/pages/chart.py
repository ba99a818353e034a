"""Charts as SVG with axes, rendered on the server, so that they need no script."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from markupsafe import Markup, escape

from holdfast.interfaces.console.stats_cache import StatsSample
from holdfast.interfaces.presentation.formatting import rough
from holdfast.ops.queries.throughput import TrendSlot

_WIDTH, _FLOOR, _ROOM = 600, 100, 96
_TICKS = 4
_ROUND = (1, 2, 5, 10)
_DAY = timedelta(days=1)

Link = Callable[[TrendSlot], str]
"""The URL that a bar leads to: a chart of its time slot, or the list of what it counts."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its texts. `figure` is the current value or the sum, `note` explains the data, `scale` are the labels of
    the axis from top to bottom. `parts` are the stacked series from bottom to top."""

    title: str
    figure: str
    note: str
    scale: tuple[str, str, str]
    drawing: Markup
    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """The time range of charts, as the texts of `ticks`. `unit` is the width of a bar in words."""

    since: datetime
    until: datetime
    unit: str
    ticks: tuple[str, ...]


def time_axis(slots: Sequence[TrendSlot], now: datetime) -> TimeAxis:
    """The axis under charts of these time slots. The last tick is `now` if the range includes it."""
    since, until, width = slots[0].at, slots[-1].until, slots[0].width
    moments = [since + n * (until - since) / _TICKS for n in range(_TICKS + 1)]
    pattern = "%H:%M:%S" if width < timedelta(minutes=1) else "%H:%M" if until - since <= _DAY else "%-d %b %H:%M"
    if width >= _DAY:
        pattern = "%-d %b" if until - since < 300 * _DAY else "%-d %b %Y"
    ticks = [at.astimezone(UTC).strftime(pattern) for at in moments]
    if until >= now:
        ticks[-1] = "now"
    return TimeAxis(since, until, _unit(width), tuple(ticks))


def _unit(width: timedelta) -> str:
    names = {timedelta(seconds=1): "second", timedelta(minutes=1): "minute", timedelta(hours=1): "hour", _DAY: "day"}
    return names.get(width, rough(width))


def throughput(slots: Sequence[TrendSlot], link: Link) -> Chart:
    """Deliveries accepted per time slot, by their current state."""
    highest = max((slot.accepted for slot in slots), default=0)
    top, unit = _round_up(highest), _unit(slots[0].width)
    bars = []
    for n, slot in enumerate(slots):
        waiting = slot.accepted - slot.delivered - slot.failed
        parts = (("done", slot.delivered), ("waiting", waiting), ("dead", slot.failed))
        counts = ", ".join(f"{count:,} {kind}" for kind, count in parts)
        bars.append(
            _bar(n, len(slots), parts, top, f"{slot_text(slot)} {accepted_text(slot)} accepted: {counts}", link(slot))
        )
    estimated = [slot for slot in slots if slot.estimated]
    about = "about " if estimated else ""
    # The last complete slot, or the current one if there is no other.
    last = next((slot for slot in (*slots[-2:-1], *slots[-1:]) if slot.accepted), None)
    note = f"deliveries accepted per {unit}, by current state"
    if estimated:
        error = max(slot.margin / slot.accepted for slot in estimated if slot.accepted)
        note += f"; totals are estimated within ±{100 * error:.1f} %, done and waiting within ±10 %; dead is exact"
    return Chart(
        title="Throughput",
        figure="none" if last is None else f"{'about ' if last.estimated else ''}{last.accepted:,} per {unit}",
        note=note,
        scale=_scale(top),
        drawing=_frame(f"Deliveries accepted per {unit}, at most {about}{highest:,}", slots, bars),
        parts=("done", "waiting", "dead"),
    )


def failures(slots: Sequence[TrendSlot], link: Link, deploy: tuple[datetime, str] | None = None) -> Chart:
    """Dead letters per time slot, by the time they failed. `deploy` is marked by a line: when it was, and its text."""
    highest = max((slot.died for slot in slots), default=0)
    top, unit = _round_up(highest), _unit(slots[0].width)
    bars = [
        _bar(
            n, len(slots), (("dead", slot.died),), top, f"{slot_text(slot)} {died_text(slot)} dead letters", link(slot)
        )
        for n, slot in enumerate(slots)
    ]
    if deploy is not None:
        x = _WIDTH * ((deploy[0] - slots[0].at) / (slots[-1].until - slots[0].at))
        bars.append(
            f'<g><title>{escape(deploy[1])}</title><line class="deploy" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{_FLOOR}"/></g>'
        )
    more = "+" if any(slot.or_more for slot in slots) else ""
    return Chart(
        title="Failures",
        figure=f"{sum(slot.died for slot in slots):,}{more} in {rough(len(slots) * slots[0].width)}",
        note=f"dead letters by the {unit} they failed, without replayed and discarded ones",
        scale=_scale(top),
        drawing=_frame(f"Dead letters per {unit}, at most {highest:,}{more}", slots, bars),
    )


def age(history: Sequence[StatsSample], axis: TimeAxis, now: datetime) -> Chart:
    """Age of the oldest due delivery over time."""
    span = axis.until - axis.since
    shown = [one for one in history if axis.since <= one.at]
    highest = max((one.oldest for one in shown), default=0.0)
    marks = []
    if shown:
        points = [
            (_WIDTH * ((one.at - axis.since) / span), _FLOOR - _ROOM * (one.oldest / highest if highest else 0))
            for one in shown
        ]
        # Extends the last value to now: a line that ends before the edge looks like an outage.
        points.append((_WIDTH, points[-1][1]))
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        marks.append(f'<polyline class="line" points="{drawn}"/>')
    peak = rough(timedelta(seconds=highest))
    collected = rough(now - shown[0].at) if shown else "0s"
    return Chart(
        title="Oldest waiting",
        figure=rough(timedelta(seconds=shown[-1].oldest)) if shown and shown[-1].oldest else "none due",
        note=f"age of the oldest due delivery; this console has collected data for {collected}",
        scale=(peak, rough(timedelta(seconds=highest / 2)), "0s") if highest else ("", "", "0s"),
        drawing=_frame(f"Age of the oldest due delivery, at most {peak}", (), marks),
    )


def slot_text(slot: TrendSlot) -> str:
    """The start of a time slot as text: with the date if the slot is long."""
    pattern = "%H:%M:%S" if slot.width < timedelta(minutes=1) else "%H:%M"
    if slot.width >= timedelta(minutes=15):
        pattern = "%a %-d %b" if slot.width >= _DAY else "%a %-d %b %H:%M"
    return slot.at.astimezone(UTC).strftime(pattern)


def accepted_text(slot: TrendSlot) -> str:
    """The accepted deliveries of a slot, with the margin of an estimate."""
    return f"about {slot.accepted:,} (±{slot.margin:,})" if slot.estimated else f"{slot.accepted:,}"


def died_text(slot: TrendSlot) -> str:
    """The new dead letters of a slot, marked if they are a lower bound."""
    return f"{slot.died:,}{'+' if slot.or_more else ''}"


def _round_up(highest: int) -> int:
    """The top of an axis: 1, 2 or 5 times a power of ten; at least 2, so that its half is whole."""
    power = int(10 ** (len(str(max(2, highest))) - 1))
    return next(factor * power for factor in _ROUND if factor * power >= max(2, highest))


def _scale(top: int) -> tuple[str, str, str]:
    return (_short(top), _short(top / 2), "0")


def _short(value: float) -> str:
    for size, unit in ((1_000_000, "M"), (1_000, "k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _bar(n: int, slots: int, parts: Sequence[tuple[str, int]], top: int, title: str, link: str) -> str:
    """A bar that links to what it counts, as markup.

    Written with f-strings: `Markup.format` would take a third of the time of the whole page.
    """
    step = _WIDTH / slots
    x = n * step
    drawn, floor = "", float(_FLOOR)
    for kind, count in parts:
        if not count:
            continue
        # A single failure among thousands must be visible.
        high = max(1.5, _ROOM * count / top)
        floor -= high
        drawn += (
            f'<rect class="bar {kind}" x="{x + 1:.1f}" y="{max(0.0, floor):.1f}" width="{step - 2:.1f}" '
            f'height="{high:.1f}"/>'
        )
    if not drawn:
        return ""
    hit = f'<rect class="hit" x="{x:.1f}" y="0" width="{step:.1f}" height="{_FLOOR}"/>'
    # Not reachable by tab: sixty stops before the rest of the page; the table of figures has the same links.
    return f'<a href="{escape(link)}" tabindex="-1"><title>{escape(title)}</title>{hit}{drawn}</a>'


def _frame(title: str, slots: Sequence[TrendSlot], marks: Sequence[str]) -> Markup:
    """The whole drawing; `marks` are markup, with every text in them escaped. A script zooms by the times of `slots`."""
    drawn = Markup("".join(marks))  # noqa: S704 - the marks are made here, their texts escaped
    zoom = (
        Markup(' data-since="{}" data-until="{}" data-width="{}"').format(
            int(slots[0].at.timestamp()), int(slots[-1].until.timestamp()), int(slots[0].width.total_seconds())
        )
        if slots
        else Markup("")
    )
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="group" aria-label="{title}" preserveAspectRatio="none"{zoom}>'
        '<line class="grid" x1="0" y1="{top}" x2="{w}" y2="{top}"/>'
        '<line class="grid" x1="0" y1="{half}" x2="{w}" y2="{half}"/>{marks}'
        '<line class="axis" x1="0" y1="{floor}" x2="{w}" y2="{floor}"/></svg>'
    ).format(
        w=_WIDTH,
        h=_FLOOR + 2,
        floor=_FLOOR,
        top=_FLOOR - _ROOM,
        half=_FLOOR - _ROOM / 2,
        title=title,
        marks=drawn,
        zoom=zoom,
    )
