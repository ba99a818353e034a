"""Claims of lanes with flow control: limits, rates, pauses, order and fairness, over all workers.

PostgreSQL counts under one advisory lock per consumer (and per queue with a limit), which ends with the claim statement.
SQLite has one writer at a time. The rows in flight are counted; there are no counters that a crash could leave wrong.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from holdfast.core.flow import BUCKETS, FlowSettings
from holdfast.stores.deliveries.claim import LANE_COLUMNS, Claimed, Lane, LaneFlow, read_claims
from holdfast.stores.dialect import as_uuid, aware_time
from holdfast.stores.messages.flow import DeliveryKey, adopt
from holdfast.stores.operation import Query, Row, Rows, Steps, columns, operation

_DELIVERY = 14
_INFO = 15
_AFTER, _END = "\x01", "\U0010ffff"
"""A key contains neither: one with a character that is not printable is replaced by its hash."""
Slots = tuple[tuple[str, tuple[str, ...]], ...]


class Floors(NamedTuple):
    """The lowest tickets in flight, below which nothing has to be counted. Only PostgreSQL uses them; 0 counts all."""

    consumer: int = 0
    queue: int = 0


KeyFloor = tuple[str, datetime]
"""A key, and the time below which a walk does not read its deliveries."""


class FlowScan(NamedTuple):
    """Where a claim searches: the oldest due deliveries, those due after `since`, or the keys after `cursor`.

    A walk takes `share` deliveries of each key. It visits `visits` keys, by default as many as it may claim deliveries. `known`
    are keys in the order of the walk, each with the time from which its deliveries are read. With None, and on SQLite, the
    deliveries of every key are read from the first.
    """

    size: int
    cursor: str | None = None
    share: int = 1
    visits: int | None = None
    since: tuple[datetime, UUID] | None = None
    known: tuple[KeyFloor, ...] | None = None


def window_size(size: int) -> int:
    """The number of deliveries that a scan without `cursor` considers in a lane with keys."""
    return 2 * size + 100


class FlowClaim(NamedTuple):
    """The deliveries that were claimed, and hints for the next claim.

    `left` candidates could not be claimed; `unkeyed` of them have no key yet. `wait` is the number of seconds until the
    next token of a rate. `cursor` and `keys` are the last key and the number of keys of a walk. `floor` is the oldest
    candidate, or with `since` the newest one. `at` is the time of the claim. `visited` are the keys of a walk with
    floors, each with the time of its oldest due delivery, or None.
    """

    claims: list[Claimed]
    left: int = 0
    unkeyed: int = 0
    wait: float | None = None
    cursor: str | None = None
    keys: int = 0
    floor: tuple[datetime, UUID] | None = None
    at: datetime | None = None
    visited: tuple[tuple[str, datetime | None], ...] = ()


class Unkeyed(NamedTuple):
    """A pending delivery without a key, with the parts of its message from which the key is found."""

    id: UUID
    run_at: datetime
    type: str
    payload: str
    headers: str


class UnkeyedPage(NamedTuple):
    """Deliveries without a key, and where to continue; None at the end of the lane."""

    found: list[Unkeyed]
    after: tuple[datetime, UUID] | None


@operation(single=True, hot=True)
def claim_flow(
    lane: Lane, worker: str, lease: timedelta, scan: FlowScan, floors: Floors, *, suspects: bool = False
) -> Steps[FlowClaim]:
    """Claims up to `scan.size` deliveries of a lane with flow control; payloads are read after the locks have ended."""
    return (yield from flow_claim_steps(lane, worker, lease, scan, floors, suspects=suspects))


def flow_claim_steps(
    lane: Lane, worker: str, lease: timedelta, scan: FlowScan, floors: Floors, *, suspects: bool = False
) -> Steps[FlowClaim]:
    """The steps of `claim_flow`, for an operation that has its own transaction."""
    rows = yield flow_query(lane, worker, lease, scan, floors, suspects=suspects)
    found = [row for row in rows if row[0] is not None]
    (info,) = [row[_INFO:] for row in rows if row[0] is None]
    claims = yield from claimed_with_messages(found)
    left, unkeyed, wait, cursor, keys, floor_at, floor_id, at, visited, firsts = info
    return FlowClaim(
        claims,
        int(left),
        int(unkeyed),
        None if wait is None else max(0.0, float(wait) / 1000),
        cursor,
        int(keys or 0),
        None if floor_id is None else (aware_time(floor_at), as_uuid(floor_id)),
        aware_time(at),
        tuple(zip(visited or (), firsts or (), strict=True)),
    )


def claimed_with_messages(deliveries: Sequence[Row]) -> Steps[list[Claimed]]:
    """Reads the messages of claimed deliveries; the locks of the claim have ended."""
    if not deliveries:
        return []
    messages: Rows = yield Query("flow_messages", {"ids": [as_uuid(row[1]) for row in deliveries]})
    return joined(deliveries, messages)


def joined(deliveries: Sequence[Row], messages: Rows) -> list[Claimed]:
    """Claimed deliveries with their messages."""
    by_id = {as_uuid(message[0]): message[1:] for message in messages}
    return read_claims([(*row[:_DELIVERY], *by_id[as_uuid(row[1])]) for row in deliveries])


def flow_query(
    lane: Lane, worker: str, lease: timedelta, scan: FlowScan, floors: Floors, *, suspects: bool = False
) -> Query:
    """The claim statement of one lane. A statement of two lanes could claim from one key twice, above its limit."""
    flow = lane.flow or LaneFlow(None, None)
    own, queue = flow.consumer, flow.queue
    floor_at, floor_id = (lane.floor_at, lane.floor_id) if scan.since is None else scan.since
    values: dict[str, object] = {
        "queue": lane.queue,
        "consumer": lane.consumer,
        "generation": lane.generation,
        "priority": lane.priority,
        "floor_at": floor_at,
        "floor_id": floor_id,
        "worker": worker,
        "lease": lease,
        "size": scan.size,
        "share": scan.share,
        "visits": scan.visits or scan.size,
        "cursor": scan.cursor or "",
        **_known(scan.cursor or "", scan.known or ()),
        "low": floors.consumer,
        "queue_low": floors.queue,
        "most": None if own is None else own.limit,
        "queue_most": None if queue is None else queue.limit,
        **_rate("rate", "rate_window", "grain", own),
        **_rate("queue_rate", "queue_window", "queue_grain", queue),
    }
    slots = _slots(flow, scan.cursor is not None, scan.known is not None, scan.since is not None, suspects)
    return Query("flow_claim", values, slots=slots, limit=scan.size, locks=flow.locks(lane))


@operation(reads=True, hot=True)
def due_lanes(lanes: Sequence[Lane], floors: Sequence[Floors] = (), *, suspects: bool = False) -> Steps[list[Lane]]:
    """The lanes that have a due delivery, with or without a key, and whose limit for all keys is not reached.

    Such a delivery may still have to wait for another limit. `floors` has the floors of each lane.
    """
    lows = [floor.consumer for floor in floors] or [0] * len(lanes)
    rows = (
        (*lane[: len(LANE_COLUMNS)], None if lane.flow is None else lane.flow.cap, low)
        for lane, low in zip(lanes, lows, strict=True)
    )
    given = columns((*LANE_COLUMNS, "most", "low"), rows)
    found = yield Query("due_lanes", batches={"lanes": given}, slots=_suspicion(suspects))
    return [lanes[number] for (number,) in found]


@operation(reads=True)
def flow_floors(lane: Lane) -> Steps[Floors]:
    """The lowest tickets in flight, read under the locks: the ticket of a claim in progress is not visible without them."""
    assert lane.flow is not None
    values = {"consumer": lane.consumer, "queue": lane.queue}
    ((consumer, queue),) = yield Query("flow_floor", values, locks=lane.flow.locks(lane))
    return Floors(int(consumer), int(queue))


@operation(reads=True)
def unkeyed_deliveries(
    lane: Lane,
    limit: int,
    *,
    ordered: bool,
    after: tuple[datetime, UUID] | None = None,
    scanned: int = 4000,
    suspects: bool = False,
) -> Steps[UnkeyedPage]:
    """Pending deliveries of the lane whose key is missing, or whose position in the order does not fit their consumer.

    They are sorted by `run_at` and id. One call reads at most `scanned` deliveries of the lane; `after` continues.
    """
    after_at, after_id = (lane.floor_at, lane.floor_id) if after is None else after
    values = {
        "queue": lane.queue,
        "consumer": lane.consumer,
        "generation": lane.generation,
        "priority": lane.priority,
        "ordered": ordered,
        "after_at": after_at,
        "after_id": after_id,
        "scanned": scanned,
    }
    rows = yield Query("flow_unkeyed", values, slots=_suspicion(suspects), limit=limit)
    found = [
        Unkeyed(as_uuid(id), aware_time(run_at), str(type), str(payload), str(headers))
        for id, run_at, type, payload, headers, _ in rows
        if type is not None
    ]
    found.sort(key=lambda one: (one.run_at, one.id.int))
    if len(found) >= limit:
        return UnkeyedPage(found, (found[-1].run_at, found[-1].id))
    last = next(((aware_time(row[1]), as_uuid(row[0])) for row in rows if row[2] is None), None)
    return UnkeyedPage(found, last)


@operation
def adopt_deliveries(keys: Sequence[DeliveryKey]) -> Steps[int]:
    """Gives keys to pending deliveries that were published without one; returns how many got one."""
    # Sorted, so that two workers that adopt the same deliveries do not deadlock.
    return len((yield adopt(sorted(keys, key=lambda one: str(one.delivery_id)))))


@operation
def forget_starts(consumer: str, older_than: timedelta) -> Steps[None]:
    """Removes the buckets of a rate that no window contains."""
    yield Query("forget_starts", {"consumer": consumer, "older_than": older_than})


@operation
def forget_old_starts() -> Steps[None]:
    """Removes buckets that no rate needs; `forget_starts` does not reach those of a consumer that is gone or idle."""
    yield Query("forget_old_starts")


@lru_cache(maxsize=512)
def _slots(flow: LaneFlow, walk: bool, floors: bool, recent: bool, suspects: bool) -> Slots:
    """The fragments of the claim statement for these settings."""
    own, queue = flow.consumer or FlowSettings(), flow.queue or FlowSettings()
    keyed, ordered = own.key is not None, own.order is not None
    floors = floors and walk and not ordered
    limited, rated = own.limit is not None, own.rate_count is not None
    room = [
        *(["room_pause"] if keyed else []),
        *(["room_limit"] if limited and own.limit_by_key else []),
        *(["room_rate"] if rated and own.rate_by_key else []),
        *(["room_head"] if ordered else []),
        *(["room_dead"] if own.order == "block" else []),
    ]
    cap = [
        *(["cap_limit"] if limited and not own.limit_by_key else []),
        *(["cap_rate"] if rated and not own.rate_by_key else []),
        *(["cap_queue_limit"] if queue.limit is not None else []),
        *(["cap_queue_rate"] if queue.rate_count is not None else []),
        *(["cap_adopted"] if ordered and not walk else []),
    ]
    unkeyed = "flow_without_place" if ordered else "flow_without_key" if keyed else "flow_all_keyed"
    chosen = {
        "candidates": ["flow_window" if not walk else "flow_walk_floors" if floors else "flow_walk"],
        "walked": ["flow_walked_heads" if ordered else "flow_walked_keys"],
        "first": ["flow_first_place" if ordered else "flow_first_due"],
        "walk_rows": ["flow_walk_heads" if ordered else "flow_walk_rows"],
        "window": ["flow_window_keyed" if keyed else "flow_window_whole"],
        "flow_key": ["flow_own_key" if keyed else "flow_one_key"],
        "unkeyed": [unkeyed],
        "rank": ["rank_order" if ordered else "rank_due"],
        "chosen": ["flow_chosen_heads" if ordered and not own.rate_by_key else "flow_chosen"],
        "turn_heads": ["turn_heads_key" if walk else "turn_heads_due"],
        "turn": ["turn_key" if walk else "turn_due"],
        "cursor": ["cursor_walk" if walk else "cursor_none"],
        "keys": ["keys_walk" if walk else "keys_none"],
        "visited": ["visited_walk" if floors else "visited_none"],
        "edge": ["edge_last" if recent else "edge_first"],
        "room": room,
        "cap": cap,
        "ledger": [] if not rated else ["ledger_keys" if own.rate_by_key else "ledger_all"],
        "queue_ledger": ["ledger_queue"] if queue.rate_count is not None else [],
        "wait": [] if not rated else ["wait_keys" if own.rate_by_key else "wait_all"],
        "queue_wait": ["wait_queue"] if queue.rate_count is not None else [],
    }
    return (*_suspicion(suspects), *((slot, tuple(fragments)) for slot, fragments in chosen.items()))


def _known(cursor: str, known: Sequence[KeyFloor]) -> dict[str, object]:
    """The known keys of a walk.

    Keys without a floor are the ends of two ranges of keys: above the cursor, and up to it.
    """
    above = [one for one in known if one[0] > cursor]
    up_to = [one for one in known if one[0] <= cursor]
    start = [] if up_to and not up_to[0][0] else [("", None)]
    keys = [*above, (_END, None), *start, *up_to, (cursor + _AFTER, None)]
    return {"known": [key for key, _ in keys], "known_floors": [floor for _, floor in keys]}


def _rate(count: str, window: str, grain: str, settings: FlowSettings | None) -> dict[str, object]:
    if settings is None or settings.rate_count is None or settings.rate_window is None:
        return {count: None, window: None, grain: None}
    return {count: settings.rate_count, window: settings.rate_window, grain: settings.rate_window / BUCKETS}


def _suspicion(suspects: bool) -> Slots:
    return (("suspicion", ("suspect" if suspects else "not_suspect",)),)
