"""Templates: everything a page shows passes through here, and is escaped here."""

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

from holdfast.interfaces.cli.columns import attempts, state
from holdfast.interfaces.cli.formatting import ago, clock, many, printable, rough

_PACKAGE = "holdfast.interfaces.console"
_STATIC = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_LONG = 20_000
_LINE = 300


@cache
def environment() -> Environment:
    """The templates with their filters. A name a template does not get is an error, not a blank."""
    made = Environment(
        loader=PackageLoader(_PACKAGE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters.update(
        clock=clock,
        rough=rough,
        number=lambda count: f"{count:,}",
        line=line,
        text=long_text,
        json=pretty_json,
        stored_json=stored_json,
        state=state,
        attempts=attempts,
        hour=lambda at: at.astimezone(UTC).strftime("%H:%M UTC"),
        short=lambda id: f"…{str(id)[-12:]}",
        quote=lambda value: shlex.quote(str(value)),
        plain=lambda text: str(text).replace("_", " "),
    )
    made.globals.update(many=many, when=when, ago=ago, static=static_name, took=took)
    return made


def render(template: str, shown: Mapping[str, Any]) -> str:
    return environment().get_template(template).render(shown)


def when(at: datetime | None, now: datetime) -> Markup:
    """A time as people say it, with the exact one beside it for whoever points at it."""
    if at is None:
        return Markup("")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        at.astimezone(UTC).isoformat(), clock(at), ago(at, now)
    )


def took(begin: datetime | None, end: datetime) -> str:
    """How long something lasted."""
    if begin is None:
        return ""
    lasted = max(timedelta(0), end - begin)
    return f"{lasted.total_seconds() * 1000:.0f} ms" if lasted < timedelta(seconds=10) else rough(lasted)


def line(text: str | None, at_most: int = _LINE) -> str:
    """Text on one line, bounded, control characters written out."""
    if text is None:
        return ""
    flat = printable(" ".join(text[: at_most * 4].split()))
    return flat if len(flat) <= at_most else f"{flat[:at_most]}…"


def long_text(text: str | None) -> str:
    """Text as it is, bounded, control characters written out."""
    if text is None:
        return ""
    shown = printable(text[:_LONG])
    return shown if len(text) <= _LONG else f"{shown}\n… ({len(text):,} characters in all)"


def pretty_json(value: object) -> str:
    """A JSON value set for reading, bounded."""
    return long_text(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode())


def stored_json(text: str) -> str:
    """Stored JSON set for reading; what is no JSON is shown as it is."""
    if len(text) > 50 * _LONG:
        return long_text(text)
    try:
        return pretty_json(orjson.loads(text))
    except orjson.JSONDecodeError:
        return long_text(text)


@cache
def static_file(name: str) -> tuple[bytes, str]:
    """A file of the console and its media type."""
    return (resources.files(_PACKAGE) / "static" / name).read_bytes(), _STATIC[name]


@cache
def static_name(name: str) -> str:
    """The file's name with its content's mark: a new release is fetched anew, the same one never."""
    stem, _, ending = name.rpartition(".")
    return f"{stem}.{sha256(static_file(name)[0]).hexdigest()[:12]}.{ending}"


@cache
def static_files() -> dict[str, str]:
    """The files by their marked names."""
    return {static_name(name): name for name in _STATIC}
