"""Flow control in words: the settings of a consumer or queue, and the keys of a consumer."""

from collections.abc import Iterator
from datetime import datetime

from holdfast.core.values.duration import format_duration
from holdfast.interfaces.presentation.formatting import ago, many_deliveries
from holdfast.ops.queries.flow_keys import FlowState, Hold, KeyState


def flow_text(flow: FlowState | None) -> str:
    """The settings that are in use; an operator's value is followed by the declared one."""
    return "" if flow is None else ", ".join(_parts(flow))


def _parts(flow: FlowState) -> Iterator[str]:
    by = f" by {flow.key}" if flow.key is not None else ""
    if flow.limit is not None:
        changed = "" if flow.limit == flow.declared_limit else f" (declared {flow.declared_limit:,})"
        yield f"limit {flow.limit:,}{by if flow.limit_by_key else ''}{changed}"
    if flow.rate is not None:
        changed = "" if flow.rate == flow.declared_rate else f" (declared {flow.declared_rate})"
        yield f"rate {flow.rate}{by if flow.rate_by_key else ''}{changed}"
    if flow.order is not None:
        yield f"order{by}, {flow.order} on dead"
    if flow.fair:
        yield f"fair{by}"
    if flow.debounce is not None:
        most = "" if flow.max_wait is None else f" up to {format_duration(flow.max_wait)}"
        yield f"debounce {format_duration(flow.debounce)}{most}{by}"


def key_text(key: str, flow: FlowState) -> str:
    """A key as it is shown. The key '' means all deliveries, or those without a value."""
    return key or ("(all deliveries)" if flow.key is None else "(no value)")


def held_up(count: int) -> str:
    """The deliveries of its key that a dead letter holds up, in words."""
    return f"{many_deliveries(count)} of its key" if count else "its key, where nothing waits yet"


def hold_text(one: KeyState, now: datetime) -> str:
    """What holds a key up, with the time when it continues or since when it is held up."""
    if one.hold is None:
        return ""
    if one.hold is Hold.DEAD_LETTER:
        return f"blocked {ago(one.blocked_at, now)} by dead letter {one.blocked_by}"
    if one.hold is Hold.PAUSED:
        return f"paused {ago(one.paused_at, now)}"
    return f"{one.why}" + ("" if one.next_at is None else f", next {ago(one.next_at, now)}")
