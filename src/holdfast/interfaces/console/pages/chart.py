"""Charts as SVG, rendered on the server, so that they need no script."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from markupsafe import Markup, escape

from holdfast.interfaces.console.stats_cache import StatsSample
from holdfast.interfaces.presentation.formatting import rough
from holdfast.ops.queries.throughput import Minute

_WIDTH, _FLOOR, _ROOM = 600, 100, 92

Link = Callable[[datetime], str]
"""The URL of the list of what a bar counts, by the start of its minute."""


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its texts. `figure` is the current value, `peak` the highest value, `note` explains the data.
    `parts` are the stacked series from bottom to top."""

    title: str
    figure: str
    peak: str
    note: str
    drawing: Markup
    parts: tuple[str, ...] = ()


def throughput(minutes: Sequence[Minute], link: Link) -> Chart:
    """Deliveries accepted per minute, by their current state."""
    top = max((minute.accepted for minute in minutes), default=0)
    bars = []
    for n, minute in enumerate(minutes):
        waiting = minute.accepted - minute.delivered - minute.failed
        parts = (("done", minute.delivered), ("waiting", waiting), ("dead", minute.failed))
        counts = ", ".join(f"{count:,} {kind}" for kind, count in parts)
        title = f"{minute.at:%H:%M} {_accepted(minute)} accepted: {counts}"
        bars.append(_bar(n / len(minutes), 1 / len(minutes), parts, top, title, link(minute.at)))
    estimated = [minute for minute in minutes if minute.estimated]
    about = "about " if estimated else ""
    # The last complete minute, or the current one if there is no other.
    last = next((minute for minute in (*minutes[-2:-1], *minutes[-1:]) if minute.accepted), None)
    note = "deliveries accepted per minute, by current state"
    if estimated:
        error = max(minute.margin / minute.accepted for minute in estimated if minute.accepted)
        note += f"; totals are estimated within ±{100 * error:.1f} %, done and waiting within ±10 %; dead is exact"
    return Chart(
        title="Throughput",
        figure="none" if last is None else f"{'about ' if last.estimated else ''}{last.accepted:,} per minute",
        peak=f"{about}{top:,}",
        note=note,
        drawing=_frame(f"Deliveries accepted per minute, at most {about}{top:,}", bars),
        parts=("done", "waiting", "dead"),
    )


def _accepted(minute: Minute) -> str:
    return f"about {minute.accepted:,} (±{minute.margin:,})" if minute.estimated else f"{minute.accepted:,}"


def failures(minutes: Sequence[Minute], link: Link) -> Chart:
    """Dead letters per minute, by the time they failed."""
    top = max((minute.died for minute in minutes), default=0)
    bars = [
        _bar(
            n / len(minutes),
            1 / len(minutes),
            (("dead", minute.died),),
            top,
            f"{minute.at:%H:%M} {minute.died:,} dead letters",
            link(minute.at),
        )
        for n, minute in enumerate(minutes)
    ]
    return Chart(
        title="Failures",
        figure=f"{sum(minute.died for minute in minutes):,} in {len(minutes)} minutes",
        peak=f"{top:,}",
        note="dead letters by the minute they failed, without replayed and discarded ones",
        drawing=_frame(f"Dead letters per minute, at most {top:,}", bars),
    )


def age(history: Sequence[StatsSample], now: datetime, span: timedelta) -> Chart:
    """Age of the oldest due delivery over time."""
    shown = [one for one in history if now - one.at <= span]
    top = max((one.oldest for one in shown), default=0.0)
    marks = []
    if shown:
        points = [
            (_WIDTH * (1 - (now - one.at) / span), _FLOOR - _ROOM * (one.oldest / top if top else 0)) for one in shown
        ]
        # Extends the last value to now: a line that ends before the edge looks like an outage.
        points.append((_WIDTH, points[-1][1]))
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        marks.append(f'<polyline class="line" points="{drawn}"/>')
    peak = rough(timedelta(seconds=top))
    collected = rough(now - shown[0].at) if shown else "0s"
    return Chart(
        title="Oldest waiting",
        figure=rough(timedelta(seconds=shown[-1].oldest)) if shown and shown[-1].oldest else "none due",
        peak=peak,
        note=f"age of the oldest due delivery; this console has collected data for {collected}",
        drawing=_frame(f"Age of the oldest due delivery, at most {peak}", marks),
    )


def _bar(start: float, size: float, parts: Sequence[tuple[str, int]], top: int, title: str, link: str) -> str:
    """A bar that links to the list of what it counts, as markup; `start` and `size` are parts of the width.

    Written with f-strings: `Markup.format` would take a third of the time of the whole page.
    """
    x, step = start * _WIDTH, size * _WIDTH
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
    # Not reachable by tab: sixty stops before the rest of the page; the lists have the same filter.
    return f'<a href="{escape(link)}" tabindex="-1"><title>{escape(title)}</title>{drawn}</a>' if drawn else ""


def _frame(title: str, marks: Sequence[str]) -> Markup:
    """The whole drawing; `marks` are markup, with every text in them escaped."""
    drawn = Markup("".join(marks))  # noqa: S704 - the marks are made here, their texts escaped
    return Markup(
        '<svg class="chart" viewBox="0 0 {w} {h}" role="group" aria-label="{title}" preserveAspectRatio="none">'
        '<line class="grid" x1="0" y1="{top}" x2="{w}" y2="{top}"/>'
        '<line class="grid" x1="0" y1="{half}" x2="{w}" y2="{half}"/>{marks}'
        '<line class="axis" x1="0" y1="{floor}" x2="{w}" y2="{floor}"/></svg>'
    ).format(
        w=_WIDTH, h=_FLOOR + 2, floor=_FLOOR, top=_FLOOR - _ROOM, half=_FLOOR - _ROOM / 2, title=title, marks=drawn
    )
