"""Trails: one request followed by its id through messages, deliveries, runs and the audit."""

from dataclasses import dataclass
from uuid import UUID

from holdfast.core.errors import ConfigurationError
from holdfast.core.message import Message
from holdfast.ops.redaction import redactor, shown_entry, shown_listed, shown_message, shown_run
from holdfast.ops.work import Work, do
from holdfast.stores.admin.actions import AuditEntry
from holdfast.stores.queries import request_trace
from holdfast.stores.queries.query import DeliverySummary, Run

MOST_STEPS = 100
_DELIVERIES = 50
_RUNS = 20
_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class Followed:
    """A delivery on a trail: its last 20 runs, and what operators did to it."""

    listed: DeliverySummary
    runs: tuple[Run, ...]
    audit: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A message of a request with its deliveries; `more` when it has more than the 50 that are here."""

    message: Message
    deliveries: tuple[Followed, ...]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Trail:
    """A page of what followed from one request, oldest first.

    `next` is where the following page begins, as `after`; none at the end. The first page has what operators did in
    the request itself, the newest 100 acts.
    """

    request_id: str
    steps: tuple[Step, ...]
    audit: tuple[AuditEntry, ...]
    next: UUID | None


def trace_request(request_id: str, *, limit: int = 20, after: UUID | None = None) -> Work[Trail]:
    """Return a page of the messages, deliveries and runs of one request; empty if no message and no audit entry has its id.

    A page takes six queries, independent of the number of messages.
    """
    if not 1 <= limit <= MOST_STEPS:
        raise ConfigurationError(f"limit is {limit}; a page has 1 to {MOST_STEPS} messages")
    found = yield from do(request_trace.request_messages(request_id, limit + 1, after or request_trace.FIRST))
    page = found[:limit]
    own = yield from do(request_trace.trail_deliveries([message.id for message in page], _DELIVERIES + 1))
    ids = [one.delivery.id for several in own.values() for one in several[:_DELIVERIES]]
    runs = yield from do(request_trace.trail_runs(ids, _RUNS))
    entries = yield from do(request_trace.trail_audit(ids, _RUNS))
    known = yield from redactor()
    steps = []
    for message in page:
        hide = known.hide(message.type, message.payload)
        several = own.get(message.id, [])
        deliveries = tuple(
            Followed(
                shown_listed(one, hide),
                tuple(shown_run(run, hide) for run in runs.get(one.delivery.id, ())),
                tuple(shown_entry(entry, hide) for entry in entries.get(one.delivery.id, ())),
            )
            for one in several[:_DELIVERIES]
        )
        steps.append(Step(shown_message(known, message), deliveries, len(several) > _DELIVERIES))
    acts = (yield from do(request_trace.request_audit(request_id, _ENTRIES))) if after is None else []
    return Trail(
        request_id=request_id,
        steps=tuple(steps),
        audit=tuple(shown_entry(entry) for entry in acts),
        next=page[-1].id if len(found) > limit else None,
    )
