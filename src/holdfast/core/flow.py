"""Flow control: limits, rates, order, fairness and debounce of a consumer, and the key that they apply to."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from hashlib import blake2b
from typing import Any

import orjson

from holdfast.core.errors import ConfigurationError
from holdfast.core.events.payload import decode
from holdfast.core.retry import RetryPolicy, check_policy
from holdfast.core.values.duration import Duration, format_duration, to_timedelta
from holdfast.core.values.names import check_name

MAX_KEY_BYTES = 200
"""A longer key is replaced by its hash, so that an index entry stays small."""
BUCKETS = 50
"""A rate counts claims in this many buckets for each window."""
MAX_COUNT = 1_000_000
_DEFAULT_WAITS = 10

_RATE = re.compile(r"\s*(\d{1,9})\s*/\s*(.+)")
_PATH = re.compile(r"[^.\s]+(\.[^.\s]+)*")
_HEADER = "header:"

By = str | Callable[[Any], object]
"""A key: a payload path (`customer.id`), a header (`header:tenant`) or a function of the decoded payload."""


@dataclass(frozen=True, slots=True)
class Limit:
    """At most `max` deliveries hold a lease at the same time over all workers; with `by`, `max` of each key.

    Examples:
        >>> Limit(2, by="tenant_id")
        Limit(max=2, by='tenant_id')
    """

    max: int
    by: By | None = None

    def __post_init__(self) -> None:
        check_count("limit", self.max, "Limit(10)")
        if self.by is not None:
            key_rule("limit", self.by)


@dataclass(frozen=True, slots=True)
class Rate:
    """Limits how many deliveries are claimed in any window, retries included; with `by`, each key has this rate.

    Examples:
        >>> Rate("90/10s").count, Rate("90/10s").window
        (90, datetime.timedelta(seconds=10))
    """

    rate: str
    by: By | None = None

    def __post_init__(self) -> None:
        parse_rate(self.rate)
        if self.by is not None:
            key_rule("rate", self.by)

    @property
    def count(self) -> int:
        return parse_rate(self.rate)[0]

    @property
    def window(self) -> timedelta:
        return parse_rate(self.rate)[1]


_EXAMPLE_RATE = "'90/10s'"


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue with a limit or rate for all its consumers together, or with a default retry policy or retention.

    `keep` is how long the delivered rows of its handlers are kept, unless a handler says otherwise.
    """

    name: str
    limit: Limit | None = None
    rate: Rate | None = None
    retry: RetryPolicy | None = None
    keep: Duration | None = None

    def __post_init__(self) -> None:
        check_name("queue", self.name)
        owner = f"queue {self.name}"
        for option, value in (
            ("limit", check_limit(f"{owner}: ", self.limit)),
            ("rate", check_rate(f"{owner}: ", self.rate)),
        ):
            if value is not None and value.by is not None:
                raise ConfigurationError(
                    f"{owner}: {option} has by={value.by!r}; a queue has no keys. Give it to the consumers instead"
                )
        if self.retry is not None:
            check_policy(f"the policy of {owner}", self.retry)
        if self.keep is not None:
            retention(f"keep of {owner}", self.keep)

    @property
    def flow(self) -> FlowSettings | None:
        """The limit and the rate as settings of all lanes of the queue; None without both."""
        if self.limit is None and self.rate is None:
            return None
        return FlowSettings(
            limit=None if self.limit is None else self.limit.max,
            rate_count=None if self.rate is None else self.rate.count,
            rate_window=None if self.rate is None else self.rate.window,
        )


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How the key of a delivery is found when its message is published."""

    kind: str
    name: str
    function: Callable[[Any], object] | None = None

    @property
    def is_known(self) -> bool:
        """Whether this process can evaluate the rule: a function exists only where its app is loaded."""
        return self.kind != "function" or self.function is not None

    @property
    def by(self) -> str:
        """The rule as text: as it is declared, or the name of a function."""
        return f"{_HEADER}{self.name}" if self.kind == "header" else self.name

    def same(self, other: KeyRule | None) -> bool:
        """Whether both rules give the same keys; functions are compared by identity."""
        return other is not None and (self.kind, self.name, self.function) == (other.kind, other.name, other.function)

    @property
    def reads_payload(self) -> bool:
        """Whether the key depends on the payload."""
        return self.kind in ("path", "function")

    def key(self, payload: str, headers: Mapping[str, str]) -> str:
        """The key of a message. A missing path or header, or None, is the key ''."""
        if self.kind == "all":
            return ""
        if self.kind == "header":
            return bounded_key(headers.get(self.name))
        value: Any = decode(payload)
        if self.function is not None:
            return bounded_key(self.function(value))
        for part in self.name.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return bounded_key(value)


ALL = KeyRule("all", "")
"""One key for all deliveries of a consumer, such as the order of a webhook endpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowSettings:
    """The flow control of one consumer or queue. Without `key`, limit and rate apply to all its deliveries together."""

    key: KeyRule | None = None
    limit: int | None = None
    limit_by_key: bool = False
    rate_count: int | None = None
    rate_window: timedelta | None = None
    rate_by_key: bool = False
    order: str | None = None
    """What a dead letter does to its key: `block` or `skip`; None without order."""
    fair: bool = False
    debounce: timedelta | None = None
    max_wait: timedelta | None = None

    @property
    def is_sequenced(self) -> bool:
        """Whether deliveries of a key run in the order in which they were published."""
        return self.order is not None or self.debounce is not None

    @property
    def longest_wait(self) -> timedelta | None:
        """The longest wait of a debounced delivery, by default ten times the quiet time."""
        return self.max_wait if self.max_wait is not None or self.debounce is None else _DEFAULT_WAITS * self.debounce

    def to_json(self) -> dict[str, Any]:
        """The stored form; durations in seconds. A function is stored by its name only."""
        values: dict[str, Any] = {
            "key": None if self.key is None else [self.key.kind, self.key.name],
            "limit": self.limit,
            "limit_by_key": self.limit_by_key or None,
            "rate": None if self.rate_count is None else [self.rate_count, _seconds(self.rate_window)],
            "rate_by_key": self.rate_by_key or None,
            "order": self.order,
            "fair": self.fair or None,
            "debounce": _seconds(self.debounce),
            "max_wait": _seconds(self.max_wait),
        }
        return {name: value for name, value in values.items() if value is not None}

    @property
    def text(self) -> str:
        """The stored form as JSON text, the same for equal settings."""
        return orjson.dumps(self.to_json(), option=orjson.OPT_SORT_KEYS).decode()

    def overridden(self, override: str | None) -> FlowSettings:
        """These settings with an operator's values: `limit` and `rate` only."""
        if override is None:
            return self
        given = orjson.loads(override)
        changed = self
        if self.limit is not None and "limit" in given:
            changed = replace(changed, limit=int(given["limit"]))
        if self.rate_count is not None and "rate" in given:
            count, seconds = given["rate"]
            changed = replace(changed, rate_count=int(count), rate_window=timedelta(seconds=seconds))
        return changed


def stored_flow(text: str) -> FlowSettings:
    """Settings from their stored form."""
    stored = orjson.loads(text)
    rate = stored.get("rate")
    return FlowSettings(
        key=KeyRule(*stored["key"]) if "key" in stored else None,
        limit=stored.get("limit"),
        limit_by_key=bool(stored.get("limit_by_key")),
        rate_count=None if rate is None else int(rate[0]),
        rate_window=None if rate is None else timedelta(seconds=rate[1]),
        rate_by_key=bool(stored.get("rate_by_key")),
        order=stored.get("order"),
        fair=bool(stored.get("fair")),
        debounce=_duration(stored.get("debounce")),
        max_wait=_duration(stored.get("max_wait")),
    )


def effective_flow(flow: str, override: str | None) -> FlowSettings:
    """The settings that workers use: the stored ones with an operator's values."""
    return stored_flow(flow).overridden(override)


def rate_span(settings: FlowSettings) -> timedelta:
    """The time during which a claim counts for the rate: its window and one bucket; zero without a rate."""
    return timedelta(0) if settings.rate_window is None else settings.rate_window * (1 + 1 / BUCKETS)


def key_rule(option: str, by: By) -> KeyRule:
    """The rule for a `by`; raises `ConfigurationError` for a value that cannot name a key."""
    if callable(by):
        return KeyRule("function", getattr(by, "__qualname__", type(by).__name__), by)
    if not isinstance(by, str):
        raise ConfigurationError(
            f"{option}: the key is {by!r}; give a payload path ('customer.id'), a header ('header:tenant') or a function of the "
            "payload"
        )
    if by.startswith(_HEADER):
        name = by.removeprefix(_HEADER)
        if not name or name != name.strip():
            raise ConfigurationError(f"{option}: the key {by!r} names no header; write 'header:tenant'")
        return KeyRule("header", name)
    prefix, colon, name = by.partition(":")
    if colon and name and difflib.get_close_matches(prefix.lower(), ["header"], cutoff=0.7):
        raise ConfigurationError(
            f"{option}: the key {by!r} is neither a payload path nor a header; did you mean {_HEADER + name!r}?"
        )
    if not _PATH.fullmatch(by):
        raise ConfigurationError(
            f"{option}: the key {by!r} is not a payload path; write field names joined by dots, such as 'customer.id'"
        )
    return KeyRule("path", by)


def bounded_key(value: object) -> str:
    """A key as it is stored: text, '' for None, hashed if it has more than `MAX_KEY_BYTES` bytes."""
    if value is None:
        return ""
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, dict | list):
        text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    else:
        text = str(value)
    # PostgreSQL stores no NUL; a lone surrogate is no UTF-8.
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) <= MAX_KEY_BYTES and "\x00" not in text and text.isprintable():
        return text
    return "hash:" + blake2b(raw, digest_size=20).hexdigest()


def parse_rate(rate: str) -> tuple[int, timedelta]:
    """The count and the window of a rate such as `90/10s`; raises `ConfigurationError` for other text."""
    found = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if found is None:
        raise ConfigurationError(f"rate is {rate!r}; write a count and a window, such as '90/10s' or '5/1m'")
    window_text = found[2].strip()
    if window_text in ("s", "m", "h", "d", "w"):
        window_text = f"1{window_text}"
    window = to_timedelta(window_text, name=f"the window of rate {rate!r}")
    if window < timedelta(milliseconds=100):
        raise ConfigurationError(f"rate is {rate!r}; give a window of at least 100ms")
    return check_count("the count of the rate", int(found[1]), "Rate('90/10s')"), window


def format_rate(count: int, window: timedelta) -> str:
    """A rate as text that `parse_rate` reads.

    Examples:
        >>> format_rate(90, timedelta(seconds=10))
        '90/10s'
    """
    return f"{count}/{format_duration(window)}"


def check_count(name: str, value: int, example: str) -> int:
    """Return `value` if it is a whole number from 1, else raise `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_COUNT:
        raise ConfigurationError(f"{name} is {value!r}; give a whole number from 1 to {MAX_COUNT:,}, such as {example}")
    return value


def check_limit(owner: str, value: Limit | None) -> Limit | None:
    """Return `value` if it is a Limit or None, else raise `ConfigurationError`."""
    if value is not None and not isinstance(value, Limit):
        raise ConfigurationError(f"{owner}limit is {value!r}; {_give('Limit', '10', owner)}")
    return value


def check_rate(owner: str, value: Rate | None) -> Rate | None:
    """Return `value` if it is a Rate or None, else raise `ConfigurationError`."""
    if value is not None and not isinstance(value, Rate):
        raise ConfigurationError(f"{owner}rate is {value!r}; {_give('Rate', _EXAMPLE_RATE, owner)}")
    return value


def _give(cls: str, value: str, owner: str) -> str:
    """What to write instead. A queue has no keys."""
    keyed = "" if owner.startswith("queue ") else f" or {cls}({value}, by='tenant_id')"
    return f"give {cls}({value}){keyed}, after `from holdfast import {cls}`"


def _seconds(value: timedelta | None) -> float | None:
    return None if value is None else value.total_seconds()


def _duration(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def positive(option: str, value: Duration | None, otherwise: str = "leave it out") -> timedelta | None:
    """A duration above zero, or None; raises `ConfigurationError` for zero."""
    if value is None:
        return None
    given = to_timedelta(value, name=option)
    if not given:
        raise ConfigurationError(f"{option} is {value!r}; give a duration above zero, or {otherwise}")
    return given


def retention(option: str, value: Duration) -> timedelta:
    """How long rows are kept; "0" means that they are removed as soon as possible."""
    return timedelta(0) if value == "0" else to_timedelta(value, name=option)
