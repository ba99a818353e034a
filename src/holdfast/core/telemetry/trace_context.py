"""W3C trace context: the header with the trace of a message."""

from __future__ import annotations

import re
from typing import NamedTuple

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"

_FORM = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class TraceContext(NamedTuple):
    """The ids of a span, in lower-case hex."""

    trace_id: str
    span_id: str
    sampled: bool

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{int(self.sampled):02x}"


def read_traceparent(text: object) -> TraceContext | None:
    """Return the span of a `traceparent`, or None if the text, which may come from any system, is invalid.

    >>> read_traceparent("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").trace_id
    '0af7651916cd43dd8448eb211c80319c'
    """
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    # Version 00 has four parts; later versions may have more, and ff is invalid.
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    if not int(found[2], 16) or not int(found[3], 16):
        return None
    return TraceContext(found[2], found[3], bool(int(found[4], 16) & 1))
