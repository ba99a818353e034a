"""Plots as small SVG files, written by hand: bars with the spread of their rounds, and lines."""

from collections.abc import Mapping, Sequence
from html import escape

from bench.measure import Spread
from bench.table import number

_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #333 }
.title { font-weight: 600; font-size: 14px }
.quiet { fill: #777 }
.axis { stroke: #999; fill: none }
.ours { fill: #0b6e99; stroke: #0b6e99 } .bound { fill: #8a8a8a; stroke: #8a8a8a } .peer { fill: #c98a2b; stroke: #c98a2b }
.line { fill: none; stroke-width: 2 }
.spread { stroke: #333; stroke-width: 1 }
"""
_WIDTH, _LEFT, _RIGHT, _ROW = 720, 170, 90, 24


def kind_of(subject: str) -> str:
    """The class a subject is drawn with: ours, the bound, or a peer."""
    return {"holdfast": "ours", "bare": "bound"}.get(subject.partition("/")[0], "peer")


def bars(title: str, unit: str, rows: Sequence[tuple[str, Spread]]) -> str:
    """One bar for each subject, longest first, with a whisker from its lowest round to its highest."""
    rows = sorted(rows, key=lambda row: -row[1].median)
    most = max((spread.high for _, spread in rows), default=1.0) or 1.0
    scale = (_WIDTH - _LEFT - _RIGHT) / most
    parts = [f'<text x="8" y="22" class="title">{escape(title)}</text>']
    for index, (subject, spread) in enumerate(rows):
        top = 40 + index * _ROW
        middle, end = top + _ROW / 2 - 3, _LEFT + spread.median * scale
        low, high = _LEFT + spread.low * scale, _LEFT + spread.high * scale
        parts += [
            f'<text x="{_LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(subject)}</text>',
            f'<rect x="{_LEFT}" y="{top}" width="{max(1.0, end - _LEFT):.1f}" height="{_ROW - 6}" class="{kind_of(subject)}"/>',
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{middle}" y2="{middle}" class="spread"/>',
            f'<text x="{max(end, high) + 6:.1f}" y="{middle + 4}">{number(spread.median)} {escape(unit)}</text>',
        ]
    return _svg(_WIDTH, 50 + len(rows) * _ROW, title, parts)


def lines(title: str, axis: str, series: Mapping[str, Sequence[tuple[float, Spread]]]) -> str:
    """A line for each subject over a few places on an axis, set apart evenly."""
    places = sorted({place for points in series.values() for place, _ in points})
    most = max((spread.high for points in series.values() for _, spread in points), default=1.0) or 1.0
    height, bottom, top = 260, 215, 45
    across = {place: 70 + index * (_WIDTH - 240) / max(1, len(places) - 1) for index, place in enumerate(places)}

    def up(value: float) -> float:
        return bottom - (bottom - top) * value / most

    parts = [
        f'<text x="8" y="22" class="title">{escape(title)}</text>',
        f'<path d="M60 {top} V{bottom} H{_WIDTH - 150}" class="axis"/>',
        f'<text x="54" y="{top + 4}" text-anchor="end" class="quiet">{number(most)}</text>',
        f'<text x="54" y="{bottom + 4}" text-anchor="end" class="quiet">0</text>',
        f'<text x="{(_WIDTH - 90) / 2}" y="{height - 8}" text-anchor="middle" class="quiet">{escape(axis)}</text>',
    ]
    parts += [
        f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle" class="quiet">{place:,g}</text>'
        for place, x in across.items()
    ]
    for subject, points in series.items():
        kind = kind_of(subject)
        path = " ".join(f"{across[place]:.1f},{up(spread.median):.1f}" for place, spread in points)
        parts.append(f'<polyline points="{path}" class="{kind} line" style="fill:none"/>')
        for place, spread in points:
            x = across[place]
            parts.append(
                f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up(spread.low):.1f}" y2="{up(spread.high):.1f}" class="spread"/>'
            )
            parts.append(f'<circle cx="{x:.1f}" cy="{up(spread.median):.1f}" r="3" class="{kind}"/>')
        last_place, last = points[-1]
        parts.append(f'<text x="{across[last_place] + 10:.1f}" y="{up(last.median) + 4:.1f}">{escape(subject)}</text>')
    return _svg(_WIDTH, height, title, parts)


def _svg(width: int, height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" role="img" aria-label="{escape(title)}">'
    # An explicit background, because the page may be dark.
    ground = f'<rect width="{width}" height="{height:g}" rx="6" fill="#fff"/>'
    return "\n".join([head, f"<style>{_STYLE}</style>", ground, *parts, "</svg>", ""])
