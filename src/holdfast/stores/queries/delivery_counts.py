"""Counts from indexes only: exact up to a budget of half a million index entries, a lower bound beyond it.

Loose index scans find the queues, consumers and failures; their cost grows with the number of those. Each one is then
counted completely while the budget of the call lasts; PostgreSQL and SQLite read about ten entries per microsecond. A
count that the budget ended is `or_more`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.values.bounded_count import NONE, BoundedCount, total
from holdfast.stores.dialect import as_uuid, aware_time, optional_time
from holdfast.stores.operation import Query, Row, Rows, Steps, columns, operation
from holdfast.stores.queries.query import Count, FailureGroup, page_size

BUDGET = 500_000
"""The number of index entries that one call counts; counts within it are exact."""

_FEW = 100
_ROUNDS = 2
_IN_FLIGHT = 50_000
_ALL = 2**62
_KINDS = 500
_NEWEST = 2_000
MINUTES = 60
_MAX_KINDS_BY_MINUTE = 50
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)

Kind = tuple[str | None, str]


@dataclass(frozen=True, slots=True)
class DeadLetterCounts:
    """Dead letters at the database's time `now`.

    `groups` has the size and the first failure of each group, `died` how many died in each of the last 60 minutes.
    """

    now: datetime
    groups: Mapping[Kind, tuple[BoundedCount, Row]]
    died: Mapping[datetime, int]


def minutes_until(now: datetime) -> list[datetime]:
    """The starts of the last 60 minutes, oldest first; the last one is the current minute."""
    last = now.replace(second=0, microsecond=0)
    return [last - timedelta(minutes=n) for n in reversed(range(MINUTES))]


@operation(reads=True)
def dead_letter_counts() -> Steps[DeadLetterCounts | None]:
    """Counts each dead letter once for several readers; None above `BUDGET` failed deliveries or 50 groups."""
    ((now,),) = yield Query("clock")
    kinds = yield from _failure_kinds()
    if len(kinds) > _MAX_KINDS_BY_MINUTE or (yield Query("failures_beyond", limit=BUDGET)):
        return None
    minutes = minutes_until(aware_time(now))
    edges = {"lows": [_FIRST, *minutes], "highs": [*minutes, _LAST]}
    groups: dict[Kind, tuple[BoundedCount, Row]] = {}
    died: Counter[datetime] = Counter()
    rows = (yield _batch_query("failure_minutes", "kinds", _KIND, dict(enumerate(kinds)), edges)) if kinds else ()
    for n, low, size, first in rows:
        before, (earliest,) = groups.get(kinds[n], (NONE, (None,)))
        firsts = [at for at in (earliest, first) if at is not None]
        groups[kinds[n]] = before + BoundedCount(size), (min(firsts, default=None),)
        died[aware_time(low)] += size
    return DeadLetterCounts(aware_time(now), groups, {minute: died[minute] for minute in minutes if died[minute]})


@operation(reads=True)
def counts(*, exact: bool = False, dead: DeadLetterCounts | None = None) -> Steps[list[Count]]:
    """The waiting, running and failed deliveries per queue and consumer; reads partial indexes, never delivered rows.

    `exact` ignores the budget and counts completely; the time grows with the unfinished deliveries. `dead` has the
    sizes of consumers whose dead letters are in one queue; only the others are counted.
    """
    most = _ALL if exact else _IN_FLIGHT
    heads, starts = _by_consumer((yield Query("load_heads", limit=most)))
    lanes = list(starts)
    sizes = {} if dead is None else _known_sizes(lanes, dead)
    unknown = [lane for lane in lanes if lane not in sizes]
    items = [(*lane, *starts[lane]) for lane in unknown]
    sized = yield from _sizes("load_sizes", "lanes", _LANE, items, _ALL if exact else _FEW)
    sizes |= {lane: size for lane, (size, _) in zip(unknown, sized, strict=True)}
    capped = sum(row[3] or 0 for row in heads) >= most
    found = []
    for row in heads:
        queue, consumer, state, size, *_ = row
        found.append(_count(row, sizes[state, queue, consumer] if size is None else BoundedCount(size, capped)))
    return [one for one in found if one.count]


def _by_consumer(rows: Rows) -> tuple[list[Row], dict[tuple[str, str, str], list[Any]]]:
    """Combines the rows of each queue, consumer and state, with the oldest delivery and the start of the count."""
    heads: dict[tuple[str, str, str], list[Any]] = {}
    starts: dict[tuple[str, str, str], list[Any]] = {}
    for queue, consumer, state, size, oldest, now, *start in rows:
        lane = (state, queue, consumer)
        if lane not in heads:
            heads[lane] = [queue, consumer, state, size, oldest, now]
            if size is None:
                starts[lane] = start
        else:
            # Another lane of pending deliveries. A count continues through all of them, in the order of the index.
            heads[lane][4], starts[lane] = min(heads[lane][4], oldest), min(starts[lane], start)
    return list(heads.values()), starts


def _known_sizes(
    lanes: Sequence[tuple[str, str, str]], dead: DeadLetterCounts
) -> dict[tuple[str, str, str], BoundedCount]:
    """Sizes of the dead letter lanes whose consumer has only one."""
    failed = [lane for lane in lanes if lane[0] == "failed"]
    queues = Counter(consumer for _, _, consumer in failed)
    sizes = {}
    for lane in failed:
        size = total(size for (_, consumer), (size, _) in dead.groups.items() if consumer == lane[2])
        # Zero: the first dead letter was added after the count.
        if queues[lane[2]] == 1 and size:
            sizes[lane] = size
    return sizes


@operation(reads=True)
def failure_groups(
    limit: int = 50,
    consumers: Sequence[str] = (),
    kinds: Sequence[Kind] | None = None,
    dead: DeadLetterCounts | None = None,
) -> Steps[list[FailureGroup]]:
    """Dead letters grouped by failure, largest group first; of these consumers, or of all.

    With more than 500 groups, it reads the first ones by fingerprint and those of the newest failures. `kinds` names
    the groups to count instead; `dead` has their sizes.
    """
    limit = page_size(limit)
    if dead is not None:
        kinds = list(dead.groups)
    elif kinds is None:
        kinds = yield from _failure_kinds()
    kinds = [kind for kind in kinds if not consumers or kind[1] in consumers]
    if dead is None:
        counted = dict(zip(kinds, (yield from _sizes("failure_sizes", "kinds", _KIND, kinds, _FEW)), strict=True))
    else:
        counted = {kind: dead.groups[kind] for kind in kinds}
    largest = sorted(counted, key=lambda kind: (-counted[kind][0], kind[0] is None, kind[0] or "", kind[1]))[:limit]
    return (yield from _examples({kind: counted[kind] for kind in largest}))


@operation(reads=True)
def uncounted_groups() -> Steps[list[FailureGroup]]:
    """All failure groups without their sizes and first failures: a few lookups per group."""
    return (yield from _examples(dict.fromkeys((yield from _failure_kinds()), (NONE, (None,)))))


def _failure_kinds() -> Steps[list[Kind]]:
    kinds: list[Kind] = [(mark, consumer) for mark, consumer in (yield Query("failure_kinds", limit=_KINDS + 1))]
    if len(kinds) > _KINDS:
        newest = yield Query("recent_failure_kinds", limit=_NEWEST)
        kinds = list(dict.fromkeys([*kinds, *((mark, consumer) for mark, consumer in newest)]))
    return kinds


def _examples(sizes: Mapping[Kind, tuple[BoundedCount, Row]]) -> Steps[list[FailureGroup]]:
    """The groups with these sizes, each with its newest dead letter."""
    rows = yield _batch_query("failure_examples", "kinds", _KIND, dict(enumerate(sizes)), {})
    examples = {row[0]: row for row in rows}
    return [_group(kind, sizes[kind], examples[n]) for n, kind in enumerate(sizes) if n in examples]


@operation(reads=True)
def group_size(consumer: str, group: str) -> Steps[BoundedCount]:
    """The number of a consumer's dead letters in a failure group."""
    ((size, _),) = yield from _sizes("failure_sizes", "kinds", _KIND, [(group, consumer)], _FEW)
    return size


@operation(reads=True)
def group_died(consumer: str, group: str, starts: Sequence[datetime], width: timedelta) -> Steps[dict[datetime, int]]:
    """The number of dead letters of a failure group in each of several adjacent time slots. The time grows with the group."""
    edges = {"lows": list(starts), "highs": [at + width for at in starts]}
    rows = yield _batch_query("failure_minutes", "kinds", _KIND, {0: (group, consumer)}, edges)
    return {aware_time(low): int(size) for _, low, size, _ in rows}


_LANE = ("n", "state", "queue", "consumer", "generation", "priority", "since")
_KIND = ("n", "fingerprint", "consumer")


def _sizes(
    name: str, batch: str, names: Sequence[str], items: Sequence[Sequence[object]], bound: int
) -> Steps[list[tuple[BoundedCount, Row]]]:
    """The size of each item, with the other columns of the statement.

    Small items are counted first. The large ones share the remaining budget.
    """
    every = dict(enumerate(items))
    found: dict[int, tuple[BoundedCount, Row]] = {}
    unfinished = every
    for _ in range(1 + _ROUNDS):
        if not unfinished:
            break
        rows = yield _batch_query(name, batch, names, unfinished, {"bound": bound})
        found |= {n: (BoundedCount(size, size >= bound), rest) for n, size, *rest in rows}
        unfinished = {n: every[n] for n in unfinished if found[n][0].or_more}
        left = BUDGET - sum(size for size, _ in found.values() if not size.or_more)
        share = left // max(1, len(unfinished))
        if share <= bound:
            break
        bound = share
    return [found[n] for n in every]


def _batch_query(
    name: str, batch: str, names: Sequence[str], items: Mapping[int, Sequence[object]], values: Mapping[str, object]
) -> Query:
    rows = [(n, *item) for n, item in items.items()]
    return Query(name, values, batches={batch: columns(names, rows)})


def _count(row: Row, size: BoundedCount) -> Count:
    queue, consumer, state, _, oldest, now = row
    return Count(queue, consumer, state, size, optional_time(oldest), aware_time(now))


def _group(kind: Kind, counted: tuple[BoundedCount, Row], example: Row) -> FailureGroup:
    size, (first,) = counted
    _, id, error_type, error, completed = example
    fingerprint, consumer = kind
    # The generations come from the runs of the group.
    return FailureGroup(
        fingerprint,
        consumer,
        error_type,
        size,
        optional_time(first),
        optional_time(completed),
        None,
        None,
        as_uuid(id),
        error,
    )
