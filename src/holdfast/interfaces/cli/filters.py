"""Filter options of the command line, and the parameter types for ids, times and durations."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import click

from holdfast.core.delivery import Status
from holdfast.core.duration import to_timedelta
from holdfast.core.errors import ConfigurationError, InvalidDuration
from holdfast.stores.queries.query import MAX_PAGE, Filter

F = TypeVar("F", bound=Callable[..., Any])

STATUSES = (*(status.value for status in Status), "discarded")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def ID(value: str | UUID) -> UUID:  # noqa: N802
    """Parameter type: a full UUID."""
    if isinstance(value, UUID):
        return value
    if not _UUID.fullmatch(value):
        raise click.BadParameter(
            f"{value[:80]!r} is not an id; copy the full id, such as 01a1de9e-3feb-7141-acf8-3a160ca18709"
        )
    return UUID(value)


def DURATION(value: str | timedelta) -> timedelta:  # noqa: N802
    """Parameter type: a duration such as 30s or 2h."""
    try:
        return to_timedelta(value)
    except InvalidDuration as error:
        raise click.BadParameter(str(error)) from None


def MOMENT(value: str | datetime) -> datetime:  # noqa: N802
    """Parameter type: an ISO 8601 time, or an age such as 2h. A time without an offset is UTC."""
    if isinstance(value, datetime):
        return value
    try:
        return datetime.now(UTC) - to_timedelta(value)
    except InvalidDuration:
        pass
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(
            f"{value[:80]!r} is neither an age (2h, 3d) nor a time (2026-11-15T09:00:00Z)"
        ) from None
    return read.replace(tzinfo=UTC) if read.utcoffset() is None else read


def NAMES(value: str | tuple[str, ...]) -> tuple[str, ...]:  # noqa: N802
    """Parameter type: names separated by commas."""
    return value if isinstance(value, tuple) else tuple(name.strip() for name in value.split(",") if name.strip())


PAGE = click.IntRange(1, MAX_PAGE)

_FILTERS = (
    click.option("--consumer", "consumer", multiple=True, metavar="NAME", help="Only this consumer. Repeatable."),
    click.option("--queue", metavar="NAME", help="Only this queue."),
    click.option("--type", "type", metavar="TYPE", help="Only this type, or a prefix (order.*)."),
    click.option("--error-type", metavar="NAME", help="Only this error class, with or without its module."),
    click.option("--group", metavar="GROUP", help="Only this failure group (see `holdfast dlq groups`)."),
    click.option("--since", type=MOMENT, metavar="TIME", help="Ended (else created) since: 2h, 3d, 2026-11-15T09:00Z."),
    click.option("--until", type=MOMENT, metavar="TIME", help="Ended (else created) before."),
)
STATUS = click.option("--status", type=click.Choice(STATUSES), multiple=True, help="Only this state. Repeatable.")


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


def read_filter(
    *,
    status: tuple[str, ...] = (),
    consumer: tuple[str, ...] = (),
    queue: str | None = None,
    type: str | None = None,
    error_type: str | None = None,
    group: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    **more: Any,
) -> Filter:
    """Builds the filter from the options."""
    if since is not None and until is not None and since >= until:
        raise ConfigurationError("--since must be before --until")
    discarded = None
    if "discarded" in status:
        if len(status) > 1:
            raise ConfigurationError("--status discarded cannot be combined with other states")
        status, discarded = (), True
    elif status == ("failed",):
        discarded = False
    return Filter(
        statuses=tuple(Status(name) for name in status),
        discarded=discarded,
        consumers=consumer,
        queue=queue,
        type=type,
        error_type=error_type,
        group=group,
        since=since,
        until=until,
        **more,
    )
