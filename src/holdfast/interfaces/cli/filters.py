"""Filter options of the command line, and the parameter types for ids, times and durations."""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypeVar
from uuid import UUID

import click

from holdfast.core.errors import ConfigurationError
from holdfast.core.values.duration import to_timedelta
from holdfast.core.values.size import parse_size
from holdfast.interfaces.presentation.filters import (
    STATES,
    parse_id,
    parse_json,
    parse_names,
    parse_past,
    parse_target,
    parse_time,
)
from holdfast.stores.queries.query import MAX_PAGE

F = TypeVar("F", bound=Callable[..., Any])

_ID_PART = re.compile(r"[0-9a-f]{6,31}")


class ParsedType(click.ParamType):  # type: ignore[type-arg]
    """Parameter type with a parser. Values that are not text, such as defaults, are already parsed."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self._parse(value) if isinstance(value, str) else value
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


def _parse_id(text: str) -> UUID:
    try:
        return parse_id(text)
    except ConfigurationError as error:
        if _ID_PART.fullmatch(text.lower().replace("-", "")) is None:
            raise
        raise ConfigurationError(f"{error}; `holdfast search {text}` lists the ids that begin with it") from None


ID = ParsedType("id", _parse_id)
JSON = ParsedType("json", parse_json)
DURATION = ParsedType("duration", to_timedelta)
SIZE = ParsedType("size", parse_size)
TIME = ParsedType("time", lambda text: parse_time(text, datetime.now(UTC)))
SINCE = ParsedType("time", lambda text: parse_past(text, datetime.now(UTC)))
NAMES = ParsedType("names", parse_names)
TARGET = ParsedType("target", parse_target)
PAGE = click.IntRange(1, MAX_PAGE)

_FILTERS = (
    click.option("--consumer", "consumer", multiple=True, metavar="NAME", help="Only this consumer. Repeatable."),
    click.option("--queue", metavar="NAME", help="Only this queue."),
    click.option("--type", "type", metavar="TYPE", help="Only this type, or a prefix (order.*)."),
    click.option("--error-type", metavar="NAME", help="Only this error class, with or without its module."),
    click.option(
        "--group",
        metavar="GROUP",
        help="Only this fingerprint (see `holdfast dlq groups`), of all consumers unless --consumer is given.",
    ),
    click.option(
        "--since",
        type=SINCE,
        metavar="TIME",
        help="Only deliveries that ended since: 2h, 3d, 2026-11-15T09:00 (UTC). Unfinished ones: created since.",
    ),
    click.option(
        "--until",
        type=TIME,
        metavar="TIME",
        help="Only deliveries that ended before this time. Unfinished ones: created before it.",
    ),
)
STATUS = click.option("--status", type=click.Choice(STATES), multiple=True, help="Only this state. Repeatable.")


def filter_options(function: F) -> F:
    """Adds the filter options, except --status."""
    for option in reversed(_FILTERS):
        function = option(function)
    return function


def page_options(function: F) -> F:
    """Adds --limit and --before."""
    function = click.option(
        "--before", type=ID, metavar="ID", help="Only older than this one, the last id of the previous page."
    )(function)
    return click.option("--limit", type=PAGE, default=50, show_default=True, help="Maximum number of rows.")(function)
