"""Claims: due deliveries by lane, and the rescue of deliveries whose worker died."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

import orjson

from holdfast.core.flow import FlowSettings, stored_flow
from holdfast.core.retry import RetryPolicy, stored_policy
from holdfast.stores.dialect import as_uuid, as_uuids, aware_time
from holdfast.stores.operation import Query, Row, Rows, Steps, columns, operation

LANE_COLUMNS = ("queue", "consumer", "generation", "priority", "floor_at", "floor_id")
_KNOWN_COLUMNS = ("known_queue", "known_consumer", "known_generation", "known_priority", "known_at")
_PLAIN = [None, None, None, None]
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
LOWEST_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class LaneFlow:
    """The flow control of a lane, as it is declared and as operators changed it."""

    consumer: FlowSettings | None
    queue: FlowSettings | None

    @property
    def is_debounced(self) -> bool:
        """Whether the newest delivery of a key supersedes the others: claim with `claim_debounced` only."""
        return self.consumer is not None and self.consumer.debounce is not None

    @property
    def cap(self) -> int | None:
        """The limit that all deliveries of the consumer share."""
        return None if self.consumer is None or self.consumer.limit_by_key else self.consumer.limit

    def locks(self, lane: "Lane") -> tuple[str, ...]:
        """The locks that a claim takes before it counts; with fairness alone it counts nothing. The lock of the queue is always first."""
        own = self.consumer
        counts = own is not None and (own.limit, own.rate_count, own.order, own.debounce) != (None,) * 4
        return (
            *((f"flow queue {lane.queue}",) if self.queue is not None else ()),
            *((f"flow consumer {lane.consumer}",) if counts else ()),
        )


class Lane(NamedTuple):
    """A range of deliveries that a claim scans. It skips rows before the floor, which is only a hint for speed."""

    queue: str
    consumer: str
    generation: int
    priority: int
    floor_at: datetime = _BEGINNING
    floor_id: UUID = LOWEST_ID
    blocked: bool = False
    """The consumer was blocked and its pause is over: claim from it with `claim_trial` only."""
    flow: LaneFlow | None = None
    """The flow control of its consumer or queue; claim from such a lane with `claim_flow` only."""


_FIRST_LANE = Lane("", "", 0, 0)


class LaneList(NamedTuple):
    """The lanes to claim from; `floors` are those of the oldest delivery of each lane of the store, if they were read."""

    lanes: list[Lane]
    floors: list[Lane] | None = None


class Claimed(NamedTuple):
    """A delivery this worker may run, joined with its message. `payload` and `headers` are JSON text.

    A payload over 64 kB is not loaded and `payload` is empty, so that the size of a claim is bounded. `load_payload`
    reads it right before the run.
    """

    id: UUID
    message_id: UUID
    consumer: str
    queue: str
    priority: int
    generation: int
    attempts: int
    max_attempts: int | None
    fence: int
    holds: int
    expiries: int
    suspect: bool
    run_at: datetime
    retry: str | None
    type: str
    source: str
    key: str | None
    payload: str
    headers: str
    occurred_at: datetime
    message_generation: int

    @property
    def has_payload(self) -> bool:
        """Whether the claim loaded the payload. JSON text is never empty."""
        return self.payload != ""

    @property
    def own_policy(self) -> RetryPolicy | None:
        """The retry policy of the message, if it has one."""
        return None if self.retry is None else stored_policy(self.retry)

    @property
    def correlation(self) -> Mapping[str, str]:
        """The headers of the message, which contain its correlation ids."""
        return {} if self.headers == "{}" else orjson.loads(self.headers)


class Rescued(NamedTuple):
    """A delivery whose lease expired, now held by the reaper, with the policy that decides about it."""

    claimed: Claimed
    policy: RetryPolicy


@operation(reads=True, hot=True)
def lanes(
    consumers: Sequence[str], generation: int, *, queues: Sequence[str] | None = None, suspects: bool = False
) -> Steps[list[Lane]]:
    """The lanes with pending deliveries for these consumers, highest priority first.

    Excluded: paused queues and consumers, blocked consumers until their pause is over, and generations that a live
    worker still serves.
    """
    return [_read_lane(row) for row in (yield _lanes_query(consumers, generation, queues, suspects))]


@operation(reads=True, hot=True)
def list_lanes(
    consumers: Sequence[str],
    generation: int,
    *,
    queues: Sequence[str] | None = None,
    suspects: bool = False,
    known: Sequence[Lane] | None = None,
) -> Steps[LaneList]:
    """`lanes`, and with `known` the floors of all lanes of the store. A known lane is read from its floor only.

    This is for a store with many dead rows, where the start of a lane is expensive to read. A delivery below the floor of
    its lane is not found, so the caller lists without known lanes from time to time.
    """
    query = _lanes_query(consumers, generation, queues, suspects)
    if known is None:
        return LaneList([_read_lane(row) for row in (yield query)], None)
    rows = yield query._replace(name="lanes_above", batches={"known": known_lanes(known)})
    found = sorted(
        (_read_lane(row[:-1]) for row in rows if row[-1] is None), key=lambda lane: (lane.priority, *lane[:3])
    )
    return LaneList(found, [Lane(q, c, g, p, aware_time(at)) for q, c, g, p, *_, at in rows if at is not None])


def _lanes_query(consumers: Sequence[str], generation: int, queues: Sequence[str] | None, suspects: bool) -> Query:
    return Query("lanes", serving(consumers, generation, queues), slots=_suspicion(suspects))


@operation(single=True, hot=True)
def claim(
    lanes: Sequence[Lane], worker: str, lease: timedelta, limit: int, *, suspects: bool = False
) -> Steps[list[Claimed]]:
    """Claims up to `limit` due deliveries exclusively for this worker, lane by lane in the given order.

    The same statement counts the attempt and increments the fence, so a worker that dies at once has used one attempt.
    """
    rows = yield Query(
        "claim",
        {"worker": worker, "lease": lease},
        {"lanes": columns(LANE_COLUMNS, (lane[: len(LANE_COLUMNS)] for lane in lanes))},
        slots=_suspicion(suspects),
        limit=limit,
    )
    return read_claims(rows)


@operation
def claim_trial(
    lanes: Sequence[Lane],
    worker: str,
    lease: timedelta,
    trial: timedelta,
    *,
    suspects: bool = False,
    flow: Callable[[Sequence[Lane]], Steps[list[Claimed]]] | None = None,
) -> Steps[list[Claimed]]:
    """Claims one delivery of a blocked consumer whose pause is over; other workers do not claim from it for `trial` time.

    For lanes with flow control, `flow` claims instead of the plain statement.

    Returns an empty list and changes nothing when another worker was first or no delivery is due. All lanes belong to
    one consumer.
    """
    consumer = {"name": lanes[0].consumer}
    if not (yield Query("lock_trial", consumer)):
        return []
    if flow is None:
        rows = yield Query(
            "claim",
            {"worker": worker, "lease": lease},
            {"lanes": columns(LANE_COLUMNS, (lane[: len(LANE_COLUMNS)] for lane in lanes))},
            slots=_suspicion(suspects),
            limit=1,
        )
        claims = read_claims(rows)
    else:
        claims = yield from flow(lanes)
    if claims:
        yield Query("start_trial", {**consumer, "delay": trial})
    return claims


@operation(single=True, hot=True)
def discover_and_claim(
    consumers: Sequence[str],
    generation: int,
    worker: str,
    lease: timedelta,
    limit: int,
    *,
    queues: Sequence[str] | None = None,
    suspects: bool = False,
    known: Sequence[Lane] = (),
) -> Steps[list[Claimed]]:
    """`lanes` and `claim` in one statement, for an idle worker; without blocked consumers.

    Lanes in `known` are read from their floor only, as by `list_lanes`.
    """
    values = {**serving(consumers, generation, queues), "worker": worker, "lease": lease}
    slots = (*_suspicion(suspects), ("found_lanes", ("lane_above" if known else "lane",)))
    batches = {"known": known_lanes(known)} if known else {}
    rows = yield Query("discover_and_claim", values, batches, slots=slots, limit=limit)
    return read_claims(rows)


@operation(reads=True)
def load_payload(message_id: UUID) -> Steps[str]:
    """The payload of a claimed delivery that was too large for the claim."""
    ((payload,),) = yield Query("payload", {"message_id": message_id})
    return str(payload)


@operation(single=True)
def rescue(worker: str, lease: timedelta, limit: int) -> Steps[list[Rescued]]:
    """Claims deliveries whose lease and whose worker's lease have both expired; counts no attempt, reads no payload.

    The fence of the old owner becomes invalid. Each delivery is decided and settled like any other failure.
    """
    rows = yield Query("rescue", {"worker": worker, "lease": lease}, limit=limit)
    claims = read_claims([row[:-1] for row in rows])
    return [Rescued(claimed, _policy(row[-1])) for claimed, row in zip(claims, rows, strict=True)]


@operation(reads=True)
def next_expiry(worker: str) -> Steps[float | None]:
    """Seconds until the next lease of another worker may expire, by the database's clock; None without another worker.

    Negative when a delivery can be rescued now, or could be if an open transaction did not lock it.
    """
    ((seconds,),) = yield Query("next_expiry", {"worker": worker})
    return None if seconds is None else float(seconds)


@operation(reads=True)
def held_claims(worker: str) -> Steps[dict[UUID, int]]:
    """The deliveries that a worker holds in the store, with their fences."""
    return {as_uuid(id): fence for id, fence in (yield Query("held_claims", {"worker": worker}))}


@lru_cache(maxsize=512)
def _flow(own: str | None, own_override: str | None, queue: str | None, queue_override: str | None) -> LaneFlow | None:
    if own is None and queue is None:
        return None
    return LaneFlow(
        None if own is None else stored_flow(own).overridden(own_override),
        None if queue is None else stored_flow(queue).overridden(queue_override),
    )


def serving(consumers: Sequence[str], generation: int, queues: Sequence[str] | None) -> dict[str, object]:
    """The values of the fragment `runnable`: what a worker may claim."""
    names = None if queues is None else list(queues)
    return {"consumers": list(consumers), "generation": generation, "queues": names}


def _read_lane(row: Row) -> Lane:
    queue, consumer, generation, priority, blocked, *flow = row
    return Lane(
        queue, consumer, generation, priority, blocked=bool(blocked), flow=None if flow == _PLAIN else _flow(*flow)
    )


def known_lanes(lanes: Sequence[Lane]) -> dict[str, list[object]]:
    """Known lanes as a batch. The first one is before all others: from it the search for unknown lanes begins."""
    return columns(_KNOWN_COLUMNS, (lane[: len(_KNOWN_COLUMNS)] for lane in (_FIRST_LANE, *lanes)))


def _suspicion(suspects: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("suspicion", ("suspect" if suspects else "not_suspect",)),)


def _policy(stored: object) -> RetryPolicy:
    # A job may be addressed to a consumer that never registered; then the default policy applies.
    return RetryPolicy.exponential() if stored is None else stored_policy(str(stored))


def read_claims(rows: Rows) -> list[Claimed]:
    """Deliveries from the columns of the fragment `claimed`."""
    if not rows or type(rows[0][0]) is UUID:
        return list(map(Claimed._make, rows))
    ids, message_ids = as_uuids([row[0] for row in rows]), as_uuids([row[1] for row in rows])
    return [_read(id, message_id, row) for id, message_id, row in zip(ids, message_ids, rows, strict=True)]


def _read(id: UUID, message_id: UUID, row: Row) -> Claimed:
    _, _, *facts, suspect, run_at, retry, type_, source, key, payload, headers, occurred_at, generation = row
    message = (retry, type_, source, key, payload, headers, aware_time(occurred_at), generation)
    return Claimed._make((id, message_id, *facts, bool(suspect), aware_time(run_at), *message))
