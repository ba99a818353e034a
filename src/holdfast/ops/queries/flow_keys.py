"""Keys of consumers with flow control: what waits, runs and is held up under each, and why."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from holdfast.core.errors import NotFound, Refused
from holdfast.core.events.pattern import ANY
from holdfast.core.flow import ALL, FlowSettings, effective_flow, format_rate, rate_span, stored_flow
from holdfast.core.redaction.mask import REDACTED, secret_name
from holdfast.core.redaction.redact import find_redaction
from holdfast.core.values.bounded_count import BoundedCount
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin.redaction import redactions
from holdfast.stores.messages.registry import Consumer, consumers, find_consumer
from holdfast.stores.queries.flow_keys import (
    FlowTotals,
    KeyCounts,
    KeySource,
    bounded,
    delivery_key,
    flow_keys,
    flow_totals,
    key_counts,
    queue_flows,
)
from holdfast.stores.queries.query import clock, page_size, paused_queues, subscriptions


class Hold(StrEnum):
    """Why the waiting deliveries of a key do not run."""

    PAUSED = "paused"
    DEAD_LETTER = "dead_letter"
    RETRY = "retry"
    ORDER = "order"
    LIMIT = "limit"
    RATE = "rate"


class KeyFilter(StrEnum):
    """Which keys to list."""

    ALL = "all"
    WAITING = "waiting"
    RUNNING = "running"
    BLOCKED = "blocked"
    PAUSED = "paused"
    LIMITED = "limited"
    RATED = "rated"


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowState:
    """The flow control of a consumer or queue as workers use it. `declared_limit` and `declared_rate` differ from `limit`
    and `rate` if an operator changed them."""

    key: str | None
    limit: int | None
    declared_limit: int | None
    limit_by_key: bool
    rate: str | None
    declared_rate: str | None
    rate_by_key: bool
    order: str | None
    fair: bool
    debounce: timedelta | None
    max_wait: timedelta | None

    @property
    def is_changed(self) -> bool:
        """Whether an operator's value is in use."""
        return (self.limit, self.rate) != (self.declared_limit, self.declared_rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyState:
    """One key of a consumer. `hold` and `why` say what holds up its deliveries; None if a worker may run the next one.

    Counts stop at 1,000 and are lower bounds then. `oldest_at` is the due time of the delivery that waits longest.
    `blocked_by` is the dead letter that stops the key; `next_at` is when the rate or the retry of its first delivery
    lets it continue.
    """

    key: str
    waiting: BoundedCount
    due: BoundedCount
    running: BoundedCount
    oldest_at: datetime | None
    hold: Hold | None
    why: str | None
    paused_at: datetime | None
    blocked_by: UUID | None
    blocked_at: datetime | None
    next_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPage:
    """A page of a consumer's keys in byte order. `next` is passed as `after` to get the next page, None on the last.

    `obstacles` hold up all keys: a pause of the consumer or queue, a limit or rate without a key.
    """

    consumer: str
    queue: str
    flow: FlowState
    running: BoundedCount
    obstacles: tuple[str, ...]
    keys: tuple[KeyState, ...]
    next: str | None
    now: datetime


@dataclass(frozen=True, slots=True)
class DeliveryFlow:
    """The key of a delivery, its state, and what holds the delivery up."""

    key: str
    state: KeyState
    obstacles: tuple[str, ...]


_SOURCES: dict[KeyFilter, tuple[KeySource, ...]] = {
    KeyFilter.ALL: (KeySource.WAITING, KeySource.RUNNING, KeySource.DEAD, KeySource.PAUSED),
    KeyFilter.WAITING: (KeySource.WAITING,),
    KeyFilter.RUNNING: (KeySource.RUNNING,),
    KeyFilter.BLOCKED: (KeySource.DEAD,),
    KeyFilter.PAUSED: (KeySource.PAUSED,),
    KeyFilter.LIMITED: (KeySource.RUNNING,),
    KeyFilter.RATED: (KeySource.RATED,),
}
_WANTED: dict[KeyFilter, Callable[[KeyState], bool]] = {
    KeyFilter.BLOCKED: lambda one: one.blocked_by is not None,
    KeyFilter.LIMITED: lambda one: one.hold is Hold.LIMIT,
    KeyFilter.RATED: lambda one: one.hold is Hold.RATE,
}


def keys(
    consumer: str, *, state: KeyFilter = KeyFilter.ALL, prefix: str = "", after: str | None = None, limit: int = 50
) -> TaskSteps[KeyPage]:
    """A page of the keys of a consumer with flow control, each with its waiting and running deliveries and the reason why it is held up.

    The cost does not depend on the number of keys. If only some states are listed, a page may be short without being the last. A consumer
    with flow control and no key has the one key ''.
    """
    stored, settings = yield from consumer_with_flow(consumer)
    if (yield from has_secret_key(consumer, settings)):
        raise Refused(
            "list the keys of",
            f"consumer {consumer}",
            f"keyed by {'' if settings.key is None else settings.key.by}, which is redacted",
            "declare a function that returns a hash of it as the key",
        )
    limit = page_size(limit)
    queue = (yield from transact(queue_flows())).get(stored.queue)
    totals = yield from transact(flow_totals(consumer, stored.queue, settings, queue))
    obstacles = yield from _obstacles(stored, settings, queue, totals)
    next_key = None
    if settings.key is None:
        found = [_whole(settings, totals)]
    else:
        # Keys are printable, so this is the first text after a key.
        low = prefix if after is None else max(prefix, f"{after}\x01")
        names = yield from transact(flow_keys(consumer, _SOURCES[state], low, limit))
        names = [name for name in names if name.startswith(prefix)]
        next_key = names[-1] if len(names) == limit else None
        counted = yield from transact(key_counts(consumer, settings, names))
        found = [key_state(settings, name, row, totals.now) for name, row in zip(names, counted, strict=True)]
        found = [one for one in found if state not in _WANTED or _WANTED[state](one)]
    return KeyPage(
        consumer=consumer,
        queue=stored.queue,
        flow=flow_state(str(stored.flow), stored.flow_override),
        running=bounded(totals.running),
        obstacles=obstacles,
        keys=tuple(found),
        next=next_key,
        now=totals.now,
    )


def held_keys(consumer: Consumer, settings: FlowSettings, limit: int) -> TaskSteps[list[KeyState]]:
    """Keys of a consumer whose due deliveries are held up.

    Reads at most `limit` keys: those that have a running delivery or a dead letter, are paused, or have used up their
    rate."""
    if settings.key is None:
        totals = yield from transact(flow_totals(consumer.name, consumer.queue, settings, None))
        found = [_whole(settings, totals)]
    else:
        sources = [KeySource.PAUSED]
        sources += [KeySource.RUNNING] if settings.limit_by_key else []
        sources += [KeySource.RATED] if settings.rate_by_key else []
        sources += [KeySource.DEAD] if settings.order == "block" else []
        names = yield from transact(flow_keys(consumer.name, sources, "", limit))
        counted = yield from transact(key_counts(consumer.name, settings, names))
        now = yield from transact(clock())
        found = [key_state(settings, name, row, now) for name, row in zip(names, counted, strict=True)]
        if names and (yield from has_secret_key(consumer.name, settings)):
            found = [replace(one, key=REDACTED) for one in found]
    return [one for one in found if one.hold is not None]


def delivery_flow(id: UUID, consumer: str) -> TaskSteps[DeliveryFlow | None]:
    """The key of a delivery and what holds it up; None without flow control."""
    found = yield from transact(find_consumer(consumer))
    if found is None or found.flow is None:
        return None
    settings = effective_flow(found.flow, found.flow_override)
    queue = (yield from transact(queue_flows())).get(found.queue)
    totals = yield from transact(flow_totals(consumer, found.queue, settings, queue))
    key, place = yield from transact(delivery_key(id))
    obstacles = list(_common(found, settings, queue, totals))
    if settings.key is None or key is None:
        return DeliveryFlow("", _whole(settings, totals), tuple(obstacles))
    (row,) = yield from transact(key_counts(consumer, settings, [key]))
    if (yield from has_secret_key(consumer, settings)):
        key = REDACTED
    state = key_state(settings, key, row, totals.now)
    if state.why is not None:
        obstacles.append(f"key {key or repr(key)}: {state.why}")
    if place is not None and row.head_seq is not None and place > row.head_seq and state.hold in (None, Hold.RETRY):
        obstacles.append(f"earlier deliveries of key {key or repr(key)} come first")
    return DeliveryFlow(key, state, tuple(obstacles))


def has_secret_key(consumer: str, settings: FlowSettings) -> TaskSteps[bool]:
    """Whether an app declares the field of the key secret. An app refuses such a key, but may not know the redactions of
    event classes that only another one uses."""
    rule = settings.key
    if rule is None or rule.kind not in ("path", "header"):
        return False
    if rule.kind == "header":
        return secret_name(rule.name)
    declared = yield from transact(redactions())
    if find_redaction(declared, rule.name, [ANY]) is None:
        return False
    patterns = [one.pattern for one in (yield from transact(subscriptions())) if one.consumer == consumer]
    return find_redaction(declared, rule.name, patterns or [f"job.{consumer}"]) is not None


def flow_state(flow: str, override: str | None) -> FlowState:
    """The settings of a consumer or queue, as operators see them."""
    declared, used = stored_flow(flow), effective_flow(flow, override)
    return FlowState(
        key=None if used.key is None or used.key == ALL else used.key.by,
        limit=used.limit,
        declared_limit=declared.limit,
        limit_by_key=used.limit_by_key,
        rate=rate_text(used),
        declared_rate=rate_text(declared),
        rate_by_key=used.rate_by_key,
        order=used.order,
        fair=used.fair,
        debounce=used.debounce,
        max_wait=used.max_wait,
    )


def key_state(settings: FlowSettings, key: str, row: KeyCounts, now: datetime) -> KeyState:
    """A key with what holds it up. A dead letter blocks if no waiting delivery comes before it."""
    is_blocked = (
        settings.order == "block" and row.dead_seq is not None and (row.head_seq is None or row.dead_seq < row.head_seq)
    )
    hold, why, next_at = _hold(settings, row, is_blocked, now) if row.waiting or is_blocked else (None, None, None)
    return KeyState(
        key=key,
        waiting=bounded(row.waiting),
        due=bounded(row.due),
        running=bounded(row.running),
        oldest_at=row.oldest_at,
        hold=hold,
        why=why,
        paused_at=row.paused_at,
        blocked_by=row.dead_id if is_blocked else None,
        blocked_at=row.dead_at if is_blocked else None,
        next_at=next_at,
    )


def _hold(
    settings: FlowSettings, row: KeyCounts, is_blocked: bool, now: datetime
) -> tuple[Hold | None, str | None, datetime | None]:
    if row.paused_at is not None:
        return Hold.PAUSED, "the key is paused", None
    if is_blocked:
        return Hold.DEAD_LETTER, f"blocked by dead letter {row.dead_id}; replay or discard it", None
    if settings.order is not None and row.running:
        return Hold.ORDER, "one delivery at a time, in order", None
    if settings.order is not None and row.head_at is not None and row.head_at > now:
        return Hold.RETRY, "the first delivery waits for its retry or delay", row.head_at
    if not row.due:
        return None, None, None
    is_one = settings.key is None
    if settings.limit is not None and (settings.limit_by_key or is_one) and row.running >= settings.limit:
        return Hold.LIMIT, f"limit of {settings.limit:,} reached", None
    if settings.rate_count is not None and (settings.rate_by_key or is_one) and row.used >= settings.rate_count:
        return Hold.RATE, f"rate of {rate_text(settings)} reached", _next_token(settings, row.first_bucket)
    return None, None, None


def _whole(settings: FlowSettings, totals: FlowTotals) -> KeyState:
    """The one key of a consumer that declares none."""
    row = KeyCounts(
        n=0,
        running=totals.running,
        waiting=totals.pending,
        due=totals.pending,
        oldest_at=None,
        paused_at=None,
        used=totals.used,
        first_bucket=totals.first_bucket,
        head_at=None,
        head_seq=None,
        dead_id=None,
        dead_at=None,
        dead_seq=None,
    )
    return key_state(settings, "", row, totals.now)


def _obstacles(
    stored: Consumer, settings: FlowSettings, queue: FlowSettings | None, totals: FlowTotals
) -> TaskSteps[tuple[str, ...]]:
    """What holds up all keys of a consumer."""
    found = []
    if stored.queue in (yield from transact(paused_queues())):
        found.append(f"queue {stored.queue} is paused")
    if stored.paused_at is not None:
        found.append(f"consumer {stored.name} is paused")
    if stored.blocked_until is not None and stored.blocked_until > totals.now:
        found.append(f"consumer {stored.name} is blocked: {stored.blocked_resource} is unavailable")
    return (*found, *_common(stored, settings, queue, totals))


def _common(stored: Consumer, settings: FlowSettings, queue: FlowSettings | None, totals: FlowTotals) -> Iterator[str]:
    """The limits and rates without a key that are reached."""
    yield from _reached(f"consumer {stored.name}", settings, totals.running, totals.used)
    if queue is not None:
        yield from _reached(f"queue {stored.queue}", queue, totals.queue_running, totals.queue_used)


def _reached(item: str, settings: FlowSettings, running: int, used: int) -> Iterator[str]:
    if settings.limit is not None and not settings.limit_by_key and running >= settings.limit:
        yield f"{item} has reached its limit of {settings.limit:,}"
    if settings.rate_count is not None and not settings.rate_by_key and used >= settings.rate_count:
        yield f"{item} has reached its rate of {rate_text(settings)}"


def _next_token(settings: FlowSettings, first_bucket: datetime | None) -> datetime | None:
    return None if first_bucket is None else first_bucket + rate_span(settings)


def rate_text(settings: FlowSettings) -> str | None:
    """The rate as it is declared, such as `90/10s`."""
    if settings.rate_count is None or settings.rate_window is None:
        return None
    return format_rate(settings.rate_count, settings.rate_window)


def consumer_with_flow(name: str) -> TaskSteps[tuple[Consumer, FlowSettings]]:
    """A consumer and its effective settings; raises `Refused` if it has no flow control."""
    found = yield from transact(find_consumer(name))
    if found is not None and found.flow is not None:
        return found, effective_flow(found.flow, found.flow_override)
    names = [one.name for one in (yield from transact(consumers())) if one.flow is not None]
    listed = f"consumers with flow control: {', '.join(names[:20]) or 'none'}"
    if found is None:
        raise NotFound("consumer", name, listed)
    raise Refused("find the keys of", f"consumer {name}", "declared without flow control", listed)
