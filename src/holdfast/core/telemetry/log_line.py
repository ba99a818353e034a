"""A log line as one line of text for people: what happened, to what, at which attempt, why, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.failures.frame import own_frame
from holdfast.core.text import printable, safe_str

_ERROR = 300
_VALUE = 200

# What a line about a delivery says in words, or what only helps a machine that searches.
_TOLD = frozenset(
    {
        *("event", "level", "log_level", "timestamp", "consumer", "event_type", "attempt", "max_attempts", "error"),
        *("error_type", "stack_trace", "next_attempt_in", "next_attempt_at", "event_id", "delivery_id", "dlq_id"),
        *(
            "operation",
            "change",
            "worker",
            "source",
            "queue",
            "handler",
            "retryable",
            "fingerprint",
            "latency_ms",
            "trace_id",
        ),
        *("traceparent", "header_traceparent", "held", "where", "folded", "folded_seconds", "hint"),
    }
)


def one_line(event: str, fields: Mapping[str, object]) -> str:
    """Return the line without its stack trace; control characters in it are escaped.

    >>> known = {"consumer": "mail", "event_type": "order.placed", "attempt": 1, "max_attempts": 5, "error": "down"}
    >>> one_line("delivery retried", known | {"error_type": "OSError", "next_attempt_in": 2.5})
    'delivery retried: mail (order.placed) attempt 1/5: OSError: down; next attempt in 2.5 s'
    """
    said = [printable(event)]
    if consumer := fields.get("consumer"):
        type = fields.get("event_type")
        said.append(f": {_shown(consumer)}" + (f" ({_shown(type)})" if type and type != f"job.{consumer}" else ""))
    if (folded := fields.get("folded")) is not None:
        said.append(f" {_shown(folded)} more like it in {_shown(fields.get('folded_seconds'))} s, the last at")
    if (attempt := fields.get("attempt")) is not None:
        most = fields.get("max_attempts")
        said.append(f" attempt {_shown(attempt)}" + (f"/{_shown(most)}" if most is not None else ""))
    if error := fields.get("error") or fields.get("error_type"):
        kind = fields.get("error_type") if fields.get("error") else None
        name = f"{_shown(kind).rpartition('.')[2]}: " if kind else ""
        said.append(f": {name}{_shown(error, _ERROR)}")
    if place := _place(fields):
        said.append(f" at {place}")
    said.extend(f" {_shown(name)}={_shown(value)}" for name, value in fields.items() if name not in _TOLD)
    if (wait := fields.get("next_attempt_in")) is not None:
        said.append(f"; next attempt in {_shown(wait)} s")
    if hint := fields.get("hint"):
        said.append(f"; {_shown(hint)}")
    if command := _command(event, fields):
        said.append(f"; {command}")
    return "".join(said)


def _command(event: str, fields: Mapping[str, object]) -> str | None:
    """The command that shows more about it."""
    if "folded" in fields:
        return f"holdfast dlq groups --consumer {_shown(fields.get('consumer'))}" if event == "dead letter" else None
    if id := fields.get("dlq_id"):
        return f"holdfast dlq show {_shown(id)}"
    if (id := fields.get("delivery_id")) and "where" not in fields:
        # A repeated line, which has no stack trace but its place, says no more than the first did.
        return f"holdfast deliveries show {_shown(id)}"
    return None


def _place(fields: Mapping[str, object]) -> str | None:
    trace, frame = fields.get("stack_trace"), fields.get("where")
    if isinstance(trace, str):
        frame = own_frame(trace)
    if not isinstance(frame, str):
        return None
    return _shown(frame.rpartition("/")[2])


def _shown(value: object, most: int = _VALUE) -> str:
    text = printable(value if isinstance(value, str) else safe_str(value)).replace("\n", "\\n").replace("\t", " ")
    return text if len(text) <= most else f"{text[: most - 1]}…"
