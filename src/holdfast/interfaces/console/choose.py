"""Choosing deliveries in the address: the same words as the command line's options, and the command that does it."""

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime

from holdfast.core.delivery import Status
from holdfast.core.duration import to_timedelta
from holdfast.core.errors import ConfigurationError, InvalidDuration
from holdfast.stores.query import Filter

STATES = (*(status.value for status in Status), "discarded")
DECIDED = ("waiting", "replayed", "discarded")
FIELDS = ("status", "consumer", "queue", "type", "error_type", "group", "since", "until")


def read_filter(given: Mapping[str, str], now: datetime, *, decided: str | None = None) -> Filter:
    """The filter an address or a form asks for; `decided` asks for dead letters: what was decided about them."""
    status = given.get("status", "")
    if status and status not in STATES:
        raise ConfigurationError(f"{status[:40]!r} is no state; the states are {', '.join(STATES)}")
    since, until = read_moment(given.get("since"), now), read_moment(given.get("until"), now)
    if since is not None and until is not None and since >= until:
        raise ConfigurationError("since is not before until; nothing can lie between them")
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
    """The filter as options of the command line."""
    words = []
    for name in FIELDS:
        values = given.get(name, "").split(",") if name == "consumer" else [given.get(name, "")]
        words += [f" --{name.replace('_', '-')} {shlex.quote(value.strip())}" for value in values if value.strip()]
    return "".join(words)


def read_moment(text: str | None, now: datetime) -> datetime | None:
    """A time from an address or a form, or how long ago it was."""
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
            f"{text[:40]!r} is neither how long ago (2h, 3d) nor a time (2026-11-15T09:00Z)"
        ) from None
    return read.replace(tzinfo=UTC) if read.utcoffset() is None else read
