"""Choosing deliveries on the command line: ids, times, durations and the options that make a filter."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import click

from holdfast.core.delivery import Status
from holdfast.core.duration import to_timedelta
from holdfast.core.errors import ConfigurationError, InvalidDuration
from holdfast.stores.query import MAX_PAGE, Filter

F = TypeVar("F", bound=Callable[..., Any])

STATUSES = (*(status.value for status in Status), "discarded")
_UUID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def ID(value: str | UUID) -> UUID:  # noqa: N802
    """An id as an option or argument."""
    if isinstance(value, UUID):
        return value
    if not _UUID.fullmatch(value):
        raise click.BadParameter(
            f"{value[:80]!r} is not an id; copy it whole, such as 01a1de9e-3feb-7141-acf8-3a160ca18709"
        )
    return UUID(value)


def DURATION(value: str | timedelta) -> timedelta:  # noqa: N802
    """A duration as an option."""
    try:
        return to_timedelta(value)
    except InvalidDuration as error:
        raise click.BadParameter(str(error)) from None


def MOMENT(value: str | datetime) -> datetime:  # noqa: N802
    """A time as an option, or how long ago it was."""
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
            f"{value[:80]!r} is neither how long ago (2h, 3d) nor a time (2026-11-15T09:00:00Z)"
        ) from None
    return read.replace(tzinfo=UTC) if read.utcoffset() is None else read


def NAMES(value: str | tuple[str, ...]) -> tuple[str, ...]:  # noqa: N802
    """Names joined by commas."""
    return value if isinstance(value, tuple) else tuple(name.strip() for name in value.split(",") if name.strip())


PAGE = click.IntRange(1, MAX_PAGE)

_FILTERS = (
    click.option("--consumer", "consumer", multiple=True, metavar="NAME", help="Of this consumer; may be repeated."),
    click.option("--queue", metavar="NAME", help="In this queue."),
    click.option("--type", "type", metavar="TYPE", help="Of this type, or of all below it (order.*)."),
    click.option("--error-type", metavar="NAME", help="Failed with this error: ConnectionError, or with its module."),
    click.option("--group", metavar="MARK", help="Of this failure group (see `holdfast dlq groups`)."),
    click.option("--since", type=MOMENT, metavar="TIME", help="Ended (or made) since: 2h, 3d, 2026-11-15T09:00Z."),
    click.option("--until", type=MOMENT, metavar="TIME", help="Ended (or made) before."),
)
STATUS = click.option("--status", type=click.Choice(STATUSES), multiple=True, help="In this state; may be repeated.")


def filter_options(function: F) -> F:
    """The options that make a filter, but for the status."""
    for option in reversed(_FILTERS):
        function = option(function)
    return function


def page_options(function: F) -> F:
    """How much of a list, and from where on."""
    function = click.option(
        "--before", type=ID, metavar="ID", help="Older than this one: the last id of the page before."
    )(function)
    return click.option("--limit", type=PAGE, default=50, show_default=True, help="How many.")(function)


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
    """The filter the options ask for."""
    if since is not None and until is not None and since >= until:
        raise ConfigurationError("--since is not before --until; nothing can lie between them")
    discarded = None
    if "discarded" in status:
        if len(status) > 1:
            raise ConfigurationError("--status discarded stands alone; leave the other states out")
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
