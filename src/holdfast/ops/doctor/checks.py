"""Checks of a store: pure functions from facts to findings."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from holdfast.core.delivery import FAILURE_HISTORY_LIMIT
from holdfast.core.values.duration import format_duration
from holdfast.ops.resources.relays import RelayState
from holdfast.stores.deliveries.worker import WorkerRecord
from holdfast.stores.messages.registry import Consumer
from holdfast.stores.migration import SchemaStatus
from holdfast.stores.queries.health import LaneCount, OldTransaction, Overdue, SubscriptionLag, TableHealth
from holdfast.stores.queries.query import Count

_SKEW = timedelta(seconds=5)
_SOON = timedelta(minutes=15)
"""Work that is due later does not need a worker now."""
_FAR_BEHIND = 1000
_DEAD_ROWS = 100_000
_LATE = timedelta(minutes=5)
WORK = ("failing", "dead letters", "old work")
"""The checks of the deliveries themselves: they are listed first."""


class Level(StrEnum):
    """The severity. A warning may be intended; a failure breaks a guarantee or stops work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and what to do about it."""

    check: str
    level: Level
    message: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The data that all checks read."""

    schema: SchemaStatus
    skew: timedelta
    now: datetime
    settings: Mapping[str, str]
    workers: tuple[WorkerRecord, ...]
    consumers: tuple[Consumer, ...]
    paused_queues: Mapping[str, datetime]
    counts: tuple[Count, ...]
    lanes: tuple[LaneCount, ...]
    overdue: Overdue
    at_bound: tuple[tuple[UUID, str], ...]
    lags: tuple[SubscriptionLag, ...]
    old: tuple[OldTransaction, ...]
    tables: tuple[TableHealth, ...]
    pooled: bool
    relays: tuple[RelayState, ...] = ()

    @property
    def alive(self) -> tuple[WorkerRecord, ...]:
        return tuple(worker for worker in self.workers if worker.alive)


# Setting, safe values, severity of another value, reason, remedy. A setting that the database does not have is ignored.
_SETTINGS: tuple[tuple[str, tuple[str, ...], Level, str, str], ...] = (
    ("fsync", ("on",), Level.FAIL, "a crash of the machine can lose or corrupt everything", "set fsync = on"),
    ("full_page_writes", ("on",), Level.FAIL, "a crash during a write can corrupt pages", "set full_page_writes = on"),
    (
        "synchronous_commit",
        ("on", "local", "remote_write", "remote_apply"),
        Level.FAIL,
        "a crash can lose what was already acknowledged",
        "set synchronous_commit = on for this role or database",
    ),
    ("autovacuum", ("on",), Level.FAIL, "dead rows are never removed and claims slow down", "set autovacuum = on"),
    ("track_counts", ("on",), Level.WARN, "autovacuum does not know where to work", "set track_counts = on"),
    (
        "default_transaction_isolation",
        ("read committed",),
        Level.WARN,
        "concurrent claims fail and are retried",
        "alter the role: set default_transaction_isolation = 'read committed'",
    ),
    (
        "default_transaction_read_only",
        ("off",),
        Level.FAIL,
        "nothing can be written: this may be a standby",
        "connect to the primary",
    ),
    (
        "journal_mode",
        ("wal",),
        Level.WARN,
        "readers and writers block each other",
        "close every connection and run `pragma journal_mode = wal` once",
    ),
    ("synchronous", ("2", "3"), Level.FAIL, "a power cut can lose what was already acknowledged", "set it to FULL"),
)


def schema_finding(status: SchemaStatus) -> Finding:
    """Checks that the tables match this release."""
    if status.current:
        return Finding("schema", Level.OK, f"{status.schema} is at version {status.found}")
    if status.found is None:
        return Finding("schema", Level.FAIL, f"{status.schema} has no tables", "run `holdfast schema migrate`")
    message = f"{status.schema} is at version {status.found}, this release needs {status.expected}"
    newer = status.found > status.expected
    return Finding("schema", Level.FAIL, message, "upgrade holdfast here" if newer else "run `holdfast schema migrate`")


def run_checks(facts: Facts) -> list[Finding]:
    """All findings, worst first, otherwise in the order of the checks."""
    checks = (
        _settings,
        _clock,
        _pooler,
        _workers,
        _lanes,
        _overdue,
        _suspects,
        _paused,
        _blocked,
        _history,
        _subscriptions,
        _relays,
        _transactions,
        _bloat,
    )
    return worst_first([schema_finding(facts.schema), *(finding for check in checks for finding in check(facts))])


def worst_first(found: Iterable[Finding]) -> list[Finding]:
    """Problems of deliveries first, then failures, warnings and passed checks; otherwise in the given order."""
    return sorted(
        found,
        key=lambda one: (one.level is Level.OK, one.check not in WORK, -list(Level).index(one.level)),
    )


def _settings(facts: Facts) -> Iterator[Finding]:
    wrong = False
    for name, good, level, why, remedy in _SETTINGS:
        value = facts.settings.get(name)
        if value is not None and value not in good:
            wrong = True
            yield Finding("durability", level, f"{name} is {value}: {why}", remedy)
    if not wrong:
        yield Finding("durability", Level.OK, f"settings are safe (server {facts.settings.get('server_version', '?')})")


def _clock(facts: Facts) -> Iterator[Finding]:
    way = "ahead" if facts.skew > timedelta(0) else "behind"
    shown = format_duration(timedelta(seconds=round(abs(facts.skew.total_seconds()))))
    if abs(facts.skew) < _SKEW:
        yield Finding("clock", Level.OK, "the clocks of the database and of this machine agree")
    else:
        yield Finding(
            "clock",
            Level.WARN,
            f"the clock of the database is {shown} {way} of this machine's; the database's decides, but ids contain this machine's",
            "synchronize both machines with NTP",
        )


def _pooler(facts: Facts) -> Iterator[Finding]:
    if facts.pooled:
        yield Finding(
            "pooler", Level.OK, "this is a connection pooler: workers find new work by polling, not immediately"
        )


def _workers(facts: Facts) -> Iterator[Finding]:
    waiting = sum(lane.size for lane in facts.lanes)
    if facts.alive:
        generations = sorted({worker.generation for worker in facts.alive})
        shown = ", ".join(map(str, generations))
        yield Finding("workers", Level.OK, f"{len(facts.alive)} alive, generation {shown}")
    elif waiting and (first := min(lane.oldest_at for lane in facts.lanes) - facts.now) > _SOON:
        message = f"none is alive; {_wait(waiting)}, the first is due in {_rough(first)}"
        yield Finding("workers", Level.WARN, message, "run `holdfast worker --app module:attr` before that")
    elif waiting:
        yield Finding(
            "workers", Level.FAIL, f"none is alive and {_wait(waiting)}", "run `holdfast worker --app module:attr`"
        )
    else:
        yield Finding("workers", Level.OK, "none is alive, and nothing waits")


def _lanes(facts: Facts) -> Iterator[Finding]:
    """Deliveries that no live worker can run: none has the consumer, serves the queue, or has a sufficient generation."""
    absent: dict[str, int] = {}
    elsewhere: dict[tuple[str, str], int] = {}
    later: dict[tuple[str, int], int] = {}
    for lane in facts.lanes if facts.alive else ():
        serving = [worker for worker in facts.alive if lane.consumer in worker.consumers]
        here = [worker for worker in serving if worker.serves(lane.consumer, lane.queue)]
        if not serving:
            absent[lane.consumer] = absent.get(lane.consumer, 0) + lane.size
        elif not here:
            key = lane.consumer, lane.queue
            elsewhere[key] = elsewhere.get(key, 0) + lane.size
        elif not any(worker.generation >= lane.generation for worker in here):
            mark = lane.consumer, lane.generation
            later[mark] = later.get(mark, 0) + lane.size
    for consumer, size in absent.items():
        yield Finding(
            "unserved",
            Level.FAIL,
            f"{_wait(size)} for {consumer}, which no live worker has",
            f"run a worker whose app has {consumer}, or `holdfast consumers retire {consumer}` and cancel what waits",
        )
    for (consumer, queue), size in elsewhere.items():
        message = f"{_wait(size)} for {consumer} in queue {queue}, which no live worker with {consumer} serves"
        yield Finding("unserved", Level.FAIL, message, f"run a worker with --queues {queue}")
    for (consumer, generation), size in later.items():
        message = f"{_wait(size)} for {consumer} at generation {generation}, later than every live worker's"
        yield Finding("generations", Level.FAIL, message, f"run workers with --generation {generation}")
    if facts.alive and not (absent or elsewhere or later):
        yield Finding("unserved", Level.OK, "a live worker can run everything that waits")


def _overdue(facts: Facts) -> Iterator[Finding]:
    size, since = facts.overdue
    if not size:
        yield Finding("leases", Level.OK, "nothing is in flight past its lease")
        return
    late = format_duration(timedelta(seconds=round(since.total_seconds()))) if since else "long"
    message = f"{many_deliveries(size)} in flight, lease expired {late} ago, worker gone"
    if facts.alive:
        yield Finding("leases", Level.FAIL, f"{message}, and not rescued", "see the logs of the workers")
    else:
        yield Finding("leases", Level.WARN, message, "they are rescued as soon as a worker runs")


def _suspects(facts: Facts) -> Iterator[Finding]:
    for row in facts.counts:
        if row.state == "suspect":
            yield Finding(
                "suspects",
                Level.WARN,
                f"{many_deliveries(row.count)} for {row.consumer} may have crashed workers; each runs alone, in a child process",
                "check that handler for crashes (memory, native code)",
            )


def _paused(facts: Facts) -> Iterator[Finding]:
    for name, at in sorted(facts.paused_queues.items()):
        waiting = sum(lane.size for lane in facts.lanes if lane.queue == name)
        yield _pause(f"queue {name}", f"queues resume {name}", facts.now - at, waiting)
    for one in facts.consumers:
        if one.paused_at is not None:
            waiting = sum(lane.size for lane in facts.lanes if lane.consumer == one.name)
            yield _pause(f"consumer {one.name}", f"consumers resume {one.name}", facts.now - one.paused_at, waiting)


def _pause(what: str, command: str, since: timedelta, waiting: int) -> Finding:
    message = f"{what} is paused for {_rough(since)}; {_wait(waiting)}"
    return Finding("paused", Level.WARN, message, f"run `holdfast {command}` when it may continue")


def _blocked(facts: Facts) -> Iterator[Finding]:
    for one in facts.consumers:
        if one.blocked_until is not None and one.blocked_until > facts.now:
            left = _rough(one.blocked_until - facts.now)
            message = f"consumer {one.name} is blocked for another {left}: {one.blocked_resource} is unavailable"
            yield Finding("blocked", Level.WARN, message, "fix the resource; the consumer continues automatically")


def _history(facts: Facts) -> Iterator[Finding]:
    if facts.at_bound:
        example, consumer = facts.at_bound[0]
        more = "at least " if len(facts.at_bound) >= 100 else ""
        yield Finding(
            "history",
            Level.WARN,
            f"{more}{many_deliveries(len(facts.at_bound))} were replayed {FAILURE_HISTORY_LIMIT} times or more and are not done, "
            f"for instance {example} for {consumer}; older cycles are in the audit",
            "another replay will not help: fix the handler or discard them",
        )


def _subscriptions(facts: Facts) -> Iterator[Finding]:
    far = [lag for lag in facts.lags if lag.behind >= _FAR_BEHIND]
    for lag in far:
        yield Finding(
            "subscriptions",
            Level.WARN,
            f"{lag.consumer} still misses {lag.behind} or more messages of {lag.pattern}",
            "workers catch up automatically; `holdfast consumers catch-up` does it now",
        )
    if not far:
        yield Finding("subscriptions", Level.OK, "every subscription is caught up or nearly so")


def _relays(facts: Facts) -> Iterator[Finding]:
    paused = {one.name for one in facts.consumers if one.paused_at is not None}
    for relay in facts.relays:
        if relay.rewound:
            yield Finding(
                "relays",
                Level.FAIL,
                f"{relay.name} is stopped: the event store comes from another server, whose transaction ids this one has not "
                "reached; if it continued, it would skip events",
                "see 'After a restore' in the how-to about relays",
            )
        elif relay.lag > _LATE and relay.name not in paused:
            count = f"{relay.waiting:,}{' or more' if relay.or_more else ''}"
            runs = f"{relay.owner} runs it" if relay.owner else "no worker runs it"
            yield Finding(
                "relays",
                Level.WARN,
                f"{relay.name} is {_rough(relay.lag)} behind, {count} to be sent to {relay.to}; {runs}",
                "look for `relay stalled` in that worker's log"
                if relay.owner
                else f"run a worker whose app has it, or `holdfast consumers retire {relay.name}` if it was removed",
            )
    if facts.relays and not any(relay.rewound or relay.lag > _LATE for relay in facts.relays):
        yield Finding("relays", Level.OK, "every relay is caught up or nearly so")


def _transactions(facts: Facts) -> Iterator[Finding]:
    for one in facts.old:
        if one.kind == "slot":
            message = f"replication slot {one.name} ({one.state}) holds back the removal of dead rows"
            yield Finding("transactions", Level.WARN, message, "drop the slot if nothing reads from it")
            continue
        age = _rough(one.age) if one.age else "long"
        if one.kind == "prepared":
            message = f"prepared transaction {one.name} of {one.application} has been open for {age}"
            yield Finding("transactions", Level.WARN, message, "commit or roll it back; until then, claims are slow")
            continue
        message = f"session {one.name} ({one.application or 'unnamed'}, {one.state}) has a transaction open for {age}"
        remedy = f"until it ends, claims are slow; end it in its program, or `select pg_terminate_backend({one.name})`"
        yield Finding("transactions", Level.WARN, message, remedy)


def _bloat(facts: Facts) -> Iterator[Finding]:
    for table in facts.tables:
        if table.dead > max(_DEAD_ROWS, table.live):
            when = "never" if table.vacuumed_at is None else f"{_rough(facts.now - table.vacuumed_at)} ago"
            message = f"{table.table} has {table.dead:,} dead rows and {table.live:,} live ones, vacuumed {when}"
            yield Finding("bloat", Level.WARN, message, "end old transactions, then vacuum the table")


def many_deliveries(count: int) -> str:
    """A number of deliveries in words."""
    return f"{count:,} deliver{'y' if count == 1 else 'ies'}"


def _wait(count: int) -> str:
    return f"{many_deliveries(count)} wait{'s' if count == 1 else ''}"


def _rough(duration: timedelta) -> str:
    return format_duration(timedelta(seconds=max(0, round(duration.total_seconds()))))
