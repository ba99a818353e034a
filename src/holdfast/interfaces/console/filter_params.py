"""Delivery filters in URLs and forms. The parameters have the names of the CLI options."""

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime

from holdfast.core.delivery import Status
from holdfast.core.duration import to_timedelta
from holdfast.core.errors import ConfigurationError, InvalidDuration
from holdfast.stores.queries.query import Filter

STATES = (*(status.value for status in Status), "discarded")
DECIDED = ("waiting", "replayed", "discarded")
FIELDS = ("status", "consumer", "queue", "type", "error_type", "group", "since", "until")


def read_filter(given: Mapping[str, str], now: datetime, *, decided: str | None = None) -> Filter:
    """Builds the filter from URL or form parameters. `decided` selects dead letters: waiting, replayed or discarded."""
    status = given.get("status", "")
    if status and status not in STATES:
        raise ConfigurationError(f"{status[:40]!r} is not a valid state; valid states are {', '.join(STATES)}")
    since, until = read_time(given.get("since"), now), read_time(given.get("until"), now)
    if since is not None and until is not None and since >= until:
        raise ConfigurationError("`since` must be before `until`")
    discarded = {"discarded": True, "failed": False}.get(status)
    return Filter(
        dead=decided == "waiting",
        replayed=decided == "replayed",
        statuses=(Status(status),) if status and status != "discarded" else (),
        discarded=True if decided == "discarded" else discarded,
        consumers=tuple(name.strip() for name in given.get("consumer", "").split(",") if name.strip()),
        queue=given.get("queue") or None,
        type=given.get("type") or None,
        error_type=given.get("error_type") or None,
        group=given.get("group") or None,
        since=since,
        until=until,
    )


def as_options(given: Mapping[str, str]) -> str:
    """Returns the filter as CLI options."""
    words = []
    for name in FIELDS:
        values = given.get(name, "").split(",") if name == "consumer" else [given.get(name, "")]
        words += [f" --{name.replace('_', '-')} {shlex.quote(value.strip())}" for value in values if value.strip()]
    return "".join(words)


def read_time(text: str | None, now: datetime) -> datetime | None:
    """Parses a timestamp or an age (2h) from a URL or a form."""
    if not text:
        return None
    try:
        return now - to_timedelta(text)
    except InvalidDuration:
        pass
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{text[:40]!r} is not a valid time; write an age (2h, 3d) or a timestamp (2026-11-15T09:00Z)"
        ) from None
    return read.replace(tzinfo=UTC) if read.utcoffset() is None else read
