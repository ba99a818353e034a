"""A log event as one line of text: what happened, to which item, at which attempt, why, and what to do next."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from holdfast.core.failures.frame import own_frame
from holdfast.core.values.text import printable, safe_str, truncated

_ERROR = 300
_VALUE = 200

# Fields that the text already contains, or that are only useful for machine search.
_OMITTED = frozenset(
    {
        *("event", "level", "log_level", "timestamp", "consumer", "event_type", "attempt", "max_attempts", "error"),
        *("error_type", "stack_trace", "next_attempt_in", "next_attempt_at", "event_id", "delivery_id", "dlq_id"),
        *("operation", "change", "worker", "source", "queue", "handler", "retryable", "fingerprint", "latency_ms"),
        *("trace_id", "traceparent", "header_traceparent", "held", "where", "folded", "folded_seconds", "hint"),
    }
)


def one_line(event: str, fields: Mapping[str, object], complete: Callable[[str], str] = str) -> str:
    """Return the line without its stack trace; control characters in it are escaped.

    `complete` makes the command in the line one that can be copied, for instance with ` --app shop:hf`.

    >>> known = {"consumer": "mail", "event_type": "order.placed", "attempt": 1, "max_attempts": 5, "error": "down"}
    >>> one_line("delivery retried", known | {"error_type": "OSError", "next_attempt_in": 2.5})
    'delivery retried: mail (order.placed) attempt 1/5: OSError: down; next attempt in 2.5 s'
    """
    parts = [printable(event)]
    if consumer := fields.get("consumer"):
        type = fields.get("event_type")
        parts.append(f": {_shown(consumer)}" + (f" ({_shown(type)})" if type and type != f"job.{consumer}" else ""))
    if (folded := fields.get("folded")) is not None:
        parts.append(f" {_shown(folded)} more like it in {_shown(fields.get('folded_seconds'))} s, the last at")
    if (attempt := fields.get("attempt")) is not None:
        # A dead letter before the limit is final: `1/5` would look as if four runs were left.
        is_early = event == "dead letter" and attempt != fields.get("max_attempts")
        most = None if is_early else fields.get("max_attempts")
        parts.append(f" attempt {_shown(attempt)}" + (f"/{_shown(most)}" if most is not None else ""))
    if error := fields.get("error") or fields.get("error_type"):
        kind = fields.get("error_type") if fields.get("error") else None
        name = f"{_shown(kind).rpartition('.')[2]}: " if kind else ""
        parts.append(f": {name}{_shown(error, _ERROR)}")
    if frame := _frame(fields):
        parts.append(f" at {frame}")
    parts.extend(f" {_shown(name)}={_shown(value)}" for name, value in fields.items() if name not in _OMITTED)
    if (wait := fields.get("next_attempt_in")) is not None:
        parts.append(f"; next attempt in {_shown(wait)} s")
    if hint := fields.get("hint"):
        parts.append(f"; {_shown(hint)}")
    if command := _command(event, fields):
        parts.append(f"; {complete(command)}")
    return "".join(parts)


def _command(event: str, fields: Mapping[str, object]) -> str | None:
    """The command that shows more details."""
    if "folded" in fields:
        return f"holdfast dlq groups --consumer {_shown(fields.get('consumer'))}" if event == "dead letter" else None
    if id := fields.get("dlq_id"):
        return f"holdfast dlq show {_shown(id)}"
    if (id := fields.get("delivery_id")) and "where" not in fields:
        # A repeated line has no stack trace, only the failing frame; the first line already has the command.
        return f"holdfast deliveries show {_shown(id)}"
    return None


def _frame(fields: Mapping[str, object]) -> str | None:
    trace, frame = fields.get("stack_trace"), fields.get("where")
    if isinstance(trace, str):
        frame = own_frame(trace)
    if not isinstance(frame, str):
        return None
    return _shown(frame.rpartition("/")[2])


def _shown(value: object, most: int = _VALUE) -> str:
    text = printable(value if isinstance(value, str) else safe_str(value)).replace("\n", "\\n").replace("\t", " ")
    return truncated(text, most)
