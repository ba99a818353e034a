"""Claiming: taking due deliveries by lane, and taking over those whose worker is gone."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import orjson

from holdfast.core.retry import RetryPolicy, stored_policy
from holdfast.stores.dialect import as_uuid, aware_time
from holdfast.stores.operation import Query, Row, Steps, columns, operation

_LANE = ("queue", "consumer", "generation", "priority", "floor_at", "floor_id")
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_LOWEST = UUID(int=0)


class Lane(NamedTuple):
    """What a claim scans. Rows before the floor are passed over; it is a hint, the row is the authority."""

    queue: str
    consumer: str
    generation: int
    priority: int
    floor_at: datetime = _BEGINNING
    floor_id: UUID = _LOWEST
    blocked: bool = False
    """The consumer was blocked and its pause is over: claim from it by `claim_trial` alone."""


class Claimed(NamedTuple):
    """A delivery this worker may run, joined with its message. `payload` and `headers` are JSON text.

    A payload of more than 64 kB is left out, and `payload` is empty, so that claims are bounded in bytes: `load_payload`
    reads it just before the run.
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
        """Whether the payload came with the claim. JSON text is never empty."""
        return self.payload != ""

    @property
    def own_policy(self) -> RetryPolicy | None:
        """The retry policy that came with the message, if one did."""
        return None if self.retry is None else stored_policy(self.retry)

    @property
    def correlation(self) -> Mapping[str, str]:
        """The message's headers."""
        return {} if self.headers == "{}" else orjson.loads(self.headers)


class Rescued(NamedTuple):
    """A delivery whose lease ran out, now held by the reaper, with the policy that decides about it."""

    claimed: Claimed
    policy: RetryPolicy


@operation(reads=True, hot=True)
def lanes(
    consumers: Sequence[str], generation: int, *, queues: Sequence[str] | None = None, suspects: bool = False
) -> Steps[list[Lane]]:
    """The lanes that hold pending work for these consumers, highest priority first.

    Left out: paused queues and consumers, blocked consumers until their pause is over, and generations that a living
    worker still serves.
    """
    rows = yield Query("lanes", _serving(consumers, generation, queues), slots=_suspicion(suspects))
    return [
        Lane(queue, consumer, generation, priority, blocked=bool(blocked))
        for queue, consumer, generation, priority, blocked in rows
    ]


@operation(single=True, hot=True)
def claim(
    lanes: Sequence[Lane], worker: str, lease: timedelta, limit: int, *, suspects: bool = False
) -> Steps[list[Claimed]]:
    """Takes up to `limit` due deliveries, lane by lane in the order given: each is this worker's alone.

    The attempt is counted and the fence raised by the same statement, so a worker that dies at once has used one.
    """
    rows = yield Query(
        "claim",
        {"worker": worker, "lease": lease},
        {"lanes": columns(_LANE, (lane[: len(_LANE)] for lane in lanes))},
        slots=_suspicion(suspects),
        limit=limit,
    )
    return [_claimed(row) for row in rows]


@operation
def claim_trial(
    lanes: Sequence[Lane], worker: str, lease: timedelta, trial: timedelta, *, suspects: bool = False
) -> Steps[list[Claimed]]:
    """Claims one delivery of a blocked consumer whose pause is over; every other worker leaves it alone for `trial`.

    Returns nothing, and changes nothing, when another worker was first or when none is due. All lanes are one
    consumer's.
    """
    consumer = {"name": lanes[0].consumer}
    if not (yield Query("lock_trial", consumer)):
        return []
    rows = yield Query(
        "claim",
        {"worker": worker, "lease": lease},
        {"lanes": columns(_LANE, (lane[: len(_LANE)] for lane in lanes))},
        slots=_suspicion(suspects),
        limit=1,
    )
    if rows:
        yield Query("start_trial", {**consumer, "delay": trial})
    return [_claimed(row) for row in rows]


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
) -> Steps[list[Claimed]]:
    """`claim` from the lanes that `lanes` would find now, without blocked ones: one question, for an idle worker."""
    serving = _serving(consumers, generation, queues)
    rows = yield Query(
        "discover_and_claim", {**serving, "worker": worker, "lease": lease}, slots=_suspicion(suspects), limit=limit
    )
    return [_claimed(row) for row in rows]


@operation(reads=True)
def load_payload(message_id: UUID) -> Steps[str]:
    """The payload of a claimed delivery that was too large to come with the claim."""
    ((payload,),) = yield Query("payload", {"message_id": message_id})
    return str(payload)


@operation(single=True)
def rescue(worker: str, lease: timedelta, limit: int) -> Steps[list[Rescued]]:
    """Takes deliveries whose lease and whose worker's lease are both past; no attempt is counted, and no payload is read.

    The old owner's fence is void from here on. What becomes of each is decided and settled as for any failure.
    """
    rows = yield Query("rescue", {"worker": worker, "lease": lease}, limit=limit)
    return [Rescued(_claimed(row[:-1]), _policy(row[-1])) for row in rows]


@operation(reads=True)
def next_expiry(worker: str) -> Steps[float | None]:
    """Seconds until the next lease of another worker may run out, by the database's clock; none if there is no other.

    Negative when something can be taken over now, or could be if no open transaction had it locked.
    """
    ((seconds,),) = yield Query("next_expiry", {"worker": worker})
    return None if seconds is None else float(seconds)


@operation(reads=True)
def held_claims(worker: str) -> Steps[dict[UUID, int]]:
    """What a worker holds according to the store, with its fence."""
    return {as_uuid(id): fence for id, fence in (yield Query("held_claims", {"worker": worker}))}


def _serving(consumers: Sequence[str], generation: int, queues: Sequence[str] | None) -> dict[str, object]:
    served = None if queues is None else list(queues)
    return {"consumers": list(consumers), "generation": generation, "queues": served}


def _suspicion(suspects: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    return (("suspicion", ("suspect" if suspects else "not_suspect",)),)


def _policy(stored: object) -> RetryPolicy:
    # A job may be addressed to a consumer that never registered: the default policy decides then.
    return RetryPolicy.exponential() if stored is None else stored_policy(str(stored))


def _claimed(row: Row) -> Claimed:
    if type(row[0]) is UUID:
        return Claimed._make(row)
    id, message_id, *facts, suspect, run_at, retry, type_, source, key, payload, headers, occurred_at, generation = row
    told = (retry, type_, source, key, payload, headers, aware_time(occurred_at), generation)
    return Claimed._make((as_uuid(id), as_uuid(message_id), *facts, bool(suspect), aware_time(run_at), *told))
