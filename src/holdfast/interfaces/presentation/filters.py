"""Filters of deliveries and audit entries. Every front end parses and checks its parameters here, with the same errors."""

import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError, InvalidDuration
from holdfast.core.events.pattern import ANY
from holdfast.core.values.duration import to_timedelta
from holdfast.stores.queries.query import Filter
from holdfast.stores.workflows.run_page import RUN_STATES, RunFilter

STATES = (*(status.value for status in Status), "discarded")
DEAD_LETTER_STATES = ("waiting", "replayed", "discarded")
FIELDS = ("status", "consumer", "queue", "type", "error_type", "group", "since", "until")
"""Names of the parameters in URLs and forms. The CLI options have the same names."""
_SKEW = timedelta(minutes=5)
"""How far the clock of the database may be ahead."""
_ID = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:[Zz]|[+-]\d\d:\d\d)", re.ASCII)


def parse_id(text: str) -> UUID:
    """Parses a full UUID."""
    if not _ID.fullmatch(text.strip()):
        raise ConfigurationError(
            f"{text[:80]!r} is not an id; copy the full id, such as 01a1de9e-3feb-7141-acf8-3a160ca18709"
        )
    return UUID(text.strip())


def parse_time(text: str, now: datetime) -> datetime:
    """Parses an age such as 2h, or an ISO 8601 time. A time without an offset is UTC."""
    try:
        return now - to_timedelta(text)
    except InvalidDuration:
        pass
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"{text[:80]!r} is neither an age (2h, 3d) nor a time (2026-11-15, '2026-11-15 09:00', 2026-11-15T09:00:00Z); a time "
            "without an offset is UTC"
        ) from None
    return parsed.replace(tzinfo=UTC) if parsed.utcoffset() is None else parsed


def parse_past(text: str, now: datetime) -> datetime:
    """`parse_time` of a time from which on items are wanted; refuses one in the future, because nothing can match it."""
    found = parse_time(text, now)
    if found > now + _SKEW:
        raise ConfigurationError(
            f"{text[:80]!r} is in the future (a time without an offset is UTC), so nothing can match"
        )
    return found


def parse_range(given: Mapping[str, str], now: datetime) -> dict[str, Any]:
    """Parses `since` and `until`, if they are given."""
    found = {name: parse_time(given[name], now) for name in ("since", "until") if given.get(name)}
    _check_range(found.get("since"), found.get("until"))
    return found


def _check_range(since: datetime | None, until: datetime | None) -> None:
    if since is not None and until is not None and since >= until:
        raise ConfigurationError("`since` must be before `until`")


def parse_timestamp(text: str) -> datetime:
    """Parses a complete RFC 3339 time. Digits beyond microseconds are truncated."""
    try:
        if _TIMESTAMP.fullmatch(text):
            return datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", text.upper()))
    except ValueError:
        pass
    raise ConfigurationError("must be a time with an offset, such as 2026-01-31T08:00:00Z")


def parse_json(text: str) -> Any:
    """Parses a JSON value."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise ConfigurationError(
            f'{text[:80]!r} is not JSON; write text in double quotes, and an object as {{"by": "ada"}}'
        ) from None


def parse_choice(text: str, choices: Iterable[str], what: str) -> str:
    """Returns `text` if it is one of the choices."""
    valid = tuple(choices)
    if text not in valid:
        raise ConfigurationError(f"{text[:40]!r} is not a valid {what}; write one of {', '.join(valid)}")
    return text


def parse_target(text: str) -> tuple[str, str]:
    """Parses the target of audit entries: KIND:NAME, or the id of a delivery."""
    if _ID.fullmatch(text):
        return "delivery", text.lower()
    kind, _, name = text.partition(":")
    if not kind or not name:
        raise ConfigurationError(f"{text[:80]!r} is neither a delivery id nor KIND:NAME, such as queue:mail")
    return kind, name


def parse_filter(given: Mapping[str, str], now: datetime, *, state: str | None = None) -> Filter:
    """Builds the filter from the texts of a URL or a form. Names are separated by commas."""
    chosen: dict[str, Any] = {name: given[name] for name in ("queue", "type", "error_type", "group") if given.get(name)}
    chosen |= parse_range(given, now)
    chosen |= {name: parse_names(given[name]) for name in ("status", "consumer") if given.get(name)}
    return delivery_filter(state=state, **chosen)


def parse_names(text: str) -> tuple[str, ...]:
    """Parses names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def delivery_filter(
    *,
    status: tuple[str, ...] = (),
    consumer: tuple[str, ...] = (),
    type: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    state: str | None = None,
    **more: Any,
) -> Filter:
    """Builds and checks a filter. `state` selects dead letters that are waiting, replayed or discarded."""
    _check_range(since, until)
    for one in status:
        parse_choice(one, STATES, "state")
    if "discarded" in status and len(status) > 1:
        raise ConfigurationError(
            "the state discarded cannot be combined with other states; query discarded deliveries separately"
        )
    if state is not None:
        parse_choice(state, DEAD_LETTER_STATES, "state of dead letters")
    discarded = True if "discarded" in (*status, state) else False if status == ("failed",) else None
    return Filter(
        statuses=() if discarded else tuple(Status(one) for one in status),
        discarded=discarded,
        dead=state == "waiting",
        replayed=state == "replayed",
        consumers=consumer,
        type=None if type == ANY else type,
        since=since,
        until=until,
        **more,
    )


RUN_FIELDS = ("workflow", "state", "key", "since", "until")
"""Names of the parameters of a list of runs in URLs and forms. The CLI options have the same names."""


def run_filter(
    *,
    workflow: str | None = None,
    state: str | None = None,
    key: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> RunFilter:
    """Builds and checks a filter of runs."""
    _check_range(since, until)
    if state is not None:
        parse_choice(state, RUN_STATES, "state of a run")
    return RunFilter(workflow=workflow, state=state, key=key, since=since, until=until)


def as_cli_options(given: Mapping[str, str]) -> str:
    """Returns the filter of a URL as CLI options."""
    words = []
    for name in FIELDS:
        values = parse_names(given.get(name, "")) if name == "consumer" else (given.get(name, "").strip(),)
        words += [f" --{name.replace('_', '-')} {shlex.quote(value)}" for value in values if value]
    return "".join(words)
