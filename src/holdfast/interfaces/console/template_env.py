"""Jinja templates, their filters, and static files. All template output is escaped."""

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any

import orjson
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from holdfast.core.encryption import encrypted_value
from holdfast.core.workflows.names import is_start
from holdfast.interfaces.presentation.deliveries import attempts, state
from holdfast.interfaces.presentation.flow import flow_text, held_up, key_text
from holdfast.interfaces.presentation.formatting import ago, clock, many, percent, printable, rough, stored_text
from holdfast.interfaces.presentation.states import consumer_state, projector_state, queue_state, webhook_state

_PACKAGE = "holdfast.interfaces.console"
_STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_MAX_TEXT = 20_000
_MAX_LINE = 300


@cache
def environment() -> Environment:
    """Returns the template environment. An undefined variable is an error."""
    env = Environment(
        loader=PackageLoader(_PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    env.filters.update(
        clock=clock,
        rough=rough,
        percent=percent,
        number=lambda count: f"{count:,}",
        line=line,
        text=long_text,
        json=pretty_json,
        stored=stored_text,
        stored_json=stored_json,
        state=state,
        attempts=attempts,
        queue_state=queue_state,
        consumer_state=consumer_state,
        projector_state=projector_state,
        webhook_state=webhook_state,
        flow=flow_text,
        key=key_text,
        held_up=held_up,
        hour=lambda at: at.astimezone(UTC).strftime("%H:%M UTC"),
        short=lambda id: f"…{str(id)[-12:]}",
        quote=lambda value: shlex.quote(str(value)),
        plain=lambda text: str(text).replace("_", " "),
    )
    env.globals.update(many=many, when=when, ago=ago, static=static_name, took=elapsed, is_start=is_start)
    return env


def render(template: str, shown: Mapping[str, Any]) -> str:
    return environment().get_template(template).render(shown)


def when(at: datetime | None, now: datetime) -> Markup:
    """Formats a time relative to now, with the exact time as tooltip."""
    if at is None:
        return Markup("")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.astimezone(UTC).isoformat(), clock(at), ago(at, now)
    )


def elapsed(begin: datetime | None, end: datetime) -> str:
    """Formats a duration."""
    if begin is None:
        return ""
    duration = max(timedelta(0), end - begin)
    return f"{duration.total_seconds() * 1000:.0f} ms" if duration < timedelta(seconds=10) else rough(duration)


def line(text: str | None, max_length: int = _MAX_LINE) -> str:
    """Returns text on one line, truncated, with control characters escaped."""
    if text is None:
        return ""
    flat = printable(" ".join(text[: max_length * 4].split()))
    return flat if len(flat) <= max_length else f"{flat[:max_length]}…"


def long_text(text: str | None) -> str:
    """Returns text truncated, with control characters escaped."""
    if text is None:
        return ""
    shown = printable(text[:_MAX_TEXT])
    return shown if len(text) <= _MAX_TEXT else f"{shown}\n… ({len(text):,} characters in total)"


def pretty_json(value: object) -> str:
    """Formats a JSON value with indentation, truncated."""
    return long_text(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode())


def stored_json(text: str) -> str:
    """Formats stored JSON with indentation. Returns invalid JSON unchanged."""
    if len(text) > 50 * _MAX_TEXT or encrypted_value(text) is not None:
        return long_text(stored_text(text))
    try:
        return pretty_json(orjson.loads(text))
    except orjson.JSONDecodeError:
        return long_text(text)


@cache
def static_file(name: str) -> tuple[bytes, str]:
    """Returns a static file and its media type."""
    return (resources.files(_PACKAGE) / "static" / name).read_bytes(), _STATIC[name]


@cache
def static_name(name: str) -> str:
    """Adds a content hash to the file name, so that browsers can cache the file indefinitely."""
    stem, _, ending = name.rpartition(".")
    return f"{stem}.{sha256(static_file(name)[0]).hexdigest()[:12]}.{ending}"


@cache
def static_files() -> dict[str, str]:
    """Maps file names with content hash to file names."""
    return {static_name(name): name for name in _STATIC}
