"""Operator actions on deliveries, queues and consumers; each is audited in the same transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import orjson

from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.telemetry.correlation import correlation
from holdfast.core.values.names import check_name
from holdfast.core.values.text import sanitize
from holdfast.stores.deliveries.dedupe import record_reruns
from holdfast.stores.dialect import as_uuid, aware_time
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.row import json_or, row_reader

LAST_ENTRY = 2**63 - 1

LONGEST_BLOCK = timedelta(minutes=1)
"""The longest pause of a blocked consumer between two trials, unless a longer pause was requested."""


class Replayed(NamedTuple):
    """A delivery that was put back to pending."""

    id: UUID
    consumer: str
    generation: int
    fence: int


class Blocked(NamedTuple):
    """A blocked consumer: whether this call started the block, and how long workers do not claim from it."""

    began: bool
    pause: timedelta


class AuditedPlan(NamedTuple):
    """The progress of a plan. A plan that was removed has no state and no total.

    `results` counts the results of the replayed deliveries.
    """

    action: str
    state: str | None
    total: int | None
    done: int
    results: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Who did what to which item, when and why, and in which request.

    `plan_id` is the plan that acted on a delivery. `plan` is the progress, for an entry about a plan.
    """

    id: int
    at: datetime
    actor: str
    action: str
    kind: str
    target: str
    reason: str | None
    detail: object
    request_id: str | None = None
    plan_id: UUID | None = None
    plan: AuditedPlan | None = None


read_entry = row_reader(AuditEntry, detail=json_or(None))


@operation
def replay(
    ids: Sequence[UUID],
    actor: str,
    reason: str | None,
    generation: int | None = None,
    *,
    rerun: bool = False,
    plan: UUID | None = None,
) -> Steps[list[Replayed]]:
    """Sets dead letters back to pending; returns the replayed ones.

    A delivery that is not returned was not a dead letter, or another job has its unique key.

    The failed cycle moves to the history, attempts and errors are cleared, and the fence is incremented; message id and
    key stay. Without a generation each delivery gets the highest live generation that serves its consumer and queue.
    `rerun` includes delivered ones and lets them run within the deduplication window. The audit records the `plan`.
    """
    rows = yield Query("replay", {**_who(ids, actor, reason, plan), "generation": generation, "rerun": rerun})
    replayed = [Replayed(as_uuid(row[0]), *row[1:]) for row in rows]
    if rerun and replayed:
        yield record_reruns([one.id for one in replayed])
    return replayed


@operation(reads=True)
def live_generation(consumer: str, queue: str) -> Steps[int | None]:
    """The generation that a replay gives this consumer's deliveries in this queue; none if no live worker serves it."""
    ((generation,),) = yield Query("live_generation", {"consumer": consumer, "queue": queue})
    return None if generation is None else int(generation)


@operation
def discard(ids: Sequence[UUID], actor: str, reason: str | None, plan: UUID | None = None) -> Steps[frozenset[UUID]]:
    """Discards dead letters permanently; returns the discarded ones. The rows stay queryable."""
    return frozenset(as_uuid(row[0]) for row in (yield Query("discard", _who(ids, actor, reason, plan))))


@operation
def cancel(ids: Sequence[UUID], actor: str, reason: str | None, plan: UUID | None = None) -> Steps[frozenset[UUID]]:
    """Cancels pending and in-flight deliveries; returns the cancelled ones. A current run can no longer complete."""
    cancelled = frozenset(as_uuid(row[0]) for row in (yield Query("cancel", _who(ids, actor, reason, plan))))
    if cancelled:
        # The last unfinished job of a group may be among them.
        yield Query("wake_stages_after", {"ids": list(cancelled)})
    return cancelled


@operation
def pause_queue(name: str, actor: str, reason: str | None) -> Steps[None]:
    """Excludes a queue from claims until it is resumed; current runs finish."""
    check_name("queue", name)
    yield Query("pause_queue", {"name": name})
    yield audited(actor, "pause", "queue", name, reason)


@operation
def resume_queue(name: str, actor: str, reason: str | None) -> Steps[bool]:
    """Includes a queue in claims again; False if it was not paused."""
    return (yield from switched("resume_queue", "resume", "queue", check_name("queue", name), actor, reason))


@operation
def pause_consumer(name: str, actor: str, reason: str | None) -> Steps[None]:
    """Excludes a consumer from claims until it is resumed; current runs finish."""
    if not (yield from switched("pause_consumer", "pause", "consumer", name, actor, reason)):
        raise NotFound("consumer", name, "`holdfast consumers list` shows the consumers")


@operation
def resume_consumer(name: str, actor: str, reason: str | None) -> Steps[bool]:
    """Includes a consumer in claims again; False if it was not paused."""
    return (yield from switched("resume_consumer", "resume", "consumer", name, actor, reason))


@operation
def block_consumer(name: str, resource: str, delay: timedelta, actor: str) -> Steps[Blocked]:
    """Blocks a consumer whose resource is unavailable.

    Workers do not claim from the consumer for half of the duration of the outage so far: at least `delay`, at most
    `LONGEST_BLOCK`. Then one delivery is tried (`claim_trial`). The audit records only the start of an outage.
    """
    resource = sanitize(resource, 200)
    if not (rows := (yield Query("lock_consumer", {"name": name}))):
        raise NotFound("consumer", name, "`holdfast consumers list` shows the consumers")
    bounds = {"shortest": delay, "longest": max(delay, LONGEST_BLOCK)}
    ((until, now),) = yield Query("block_consumer", {"name": name, "resource": resource, **bounds})
    began = not rows[0][0]
    if began:
        yield audited(actor, "block", "consumer", name, f"{resource} is unavailable")
    return Blocked(began, aware_time(until) - aware_time(now))


@operation
def unblock_consumer(name: str, actor: str, reason: str | None = None) -> Steps[bool]:
    """Unblocks a consumer; False if it was not blocked."""
    return (yield from switched("unblock_consumer", "unblock", "consumer", name, actor, reason))


@operation
def record(
    actor: str, action: str, kind: str, target: str, reason: str | None = None, detail: object = None
) -> Steps[None]:
    """Writes one audit entry, in the transaction of the audited change."""
    yield audited(actor, action, kind, target, reason, detail)


@operation(reads=True)
def audit(limit: int = 50, before: int | None = None, target: tuple[str, str] | None = None) -> Steps[list[AuditEntry]]:
    """The newest audit entries, optionally of one (kind, target); pass the last id as `before` for the next page."""
    values: dict[str, object] = {"before": LAST_ENTRY if before is None else before}
    if target is not None:
        values |= {"kind": target[0], "target": target[1]}
    where = ("where_target",) if target is not None else ()
    rows = yield Query("audit", values, slots=(("where", where),), limit=limit)
    return [read_entry(row) for row in rows]


def switched(statement: str, action: str, kind: str, name: str, actor: str, reason: str | None) -> Steps[bool]:
    """Changes the state of a named item and audits that; False if the statement changed nothing."""
    if not (yield Query(statement, {"name": name})):
        return False
    yield audited(actor, action, kind, name, reason)
    return True


def _who(ids: Sequence[UUID], actor: str, reason: str | None, plan: UUID | None) -> dict[str, object]:
    return {"ids": list(ids), **who(actor, reason), "request_id": correlation().get("request_id"), "plan": plan}


def who(actor: str, reason: str | None) -> dict[str, object]:
    """The actor and the reason in stored form; an action without an actor is refused."""
    return {"actor": _actor(actor), "reason": _reason(reason)}


def audited(actor: str, action: str, kind: str, target: str, reason: str | None, detail: object = None) -> Query:
    return Query(
        "write_audit",
        {
            "actor": _actor(actor),
            "action": action,
            "kind": kind,
            "target": target,
            "reason": _reason(reason),
            "detail": None if detail is None else orjson.dumps(detail).decode(),
            "request_id": correlation().get("request_id"),
        },
    )


def _actor(actor: str) -> str:
    if not actor or not actor.strip():
        raise ConfigurationError("the actor is missing; each action is audited, so pass one, for instance actor='ada'")
    return sanitize(actor, 200)


def _reason(reason: str | None) -> str | None:
    return None if reason is None else sanitize(reason, 2000)
