"""Traces of requests: the messages, deliveries, runs and audit entries with the id of one request."""

from dataclasses import dataclass
from uuid import UUID

from holdfast.core.errors import ConfigurationError
from holdfast.core.message import Message
from holdfast.ops.queries.redaction import redactor, shown_entry, shown_listed, shown_message, shown_run
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin.actions import AuditEntry
from holdfast.stores.queries import request_trace
from holdfast.stores.queries.query import DeliverySummary, Run

MAX_TRACED = 100
_DELIVERIES = 50
_RUNS = 20
_ENTRIES = 100


@dataclass(frozen=True, slots=True)
class TracedDelivery:
    """A delivery of a request, with its last 20 runs and its audit entries."""

    listed: DeliverySummary
    runs: tuple[Run, ...]
    audit: tuple[AuditEntry, ...]


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """A message of a request with its first 50 deliveries; `more` if it has others."""

    message: Message
    deliveries: tuple[TracedDelivery, ...]
    more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTrace:
    """A page of the messages of one request, oldest first.

    Pass `next` as `after` for the next page; it is None at the end. The first page has the newest 100 audit entries of
    the request itself.
    """

    request_id: str
    steps: tuple[TracedMessage, ...]
    audit: tuple[AuditEntry, ...]
    next: UUID | None


def trace_request(request_id: str, *, limit: int = 20, after: UUID | None = None) -> TaskSteps[RequestTrace]:
    """Return a page of the messages, deliveries and runs of one request; empty if no message and no audit entry has its id.

    A page takes six queries, independent of the number of messages.
    """
    if not 1 <= limit <= MAX_TRACED:
        raise ConfigurationError(f"limit is {limit}; a page has 1 to {MAX_TRACED} messages")
    found = yield from transact(request_trace.request_messages(request_id, limit + 1, after or request_trace.FIRST))
    page = found[:limit]
    own = yield from transact(request_trace.trail_deliveries([message.id for message in page], _DELIVERIES + 1))
    ids = [one.delivery.id for several in own.values() for one in several[:_DELIVERIES]]
    runs = yield from transact(request_trace.trail_runs(ids, _RUNS))
    entries = yield from transact(request_trace.trail_audit(ids, _RUNS))
    known = yield from redactor()
    steps = []
    for message in page:
        hide = known.hide(message.type, message.payload)
        several = own.get(message.id, [])
        deliveries = tuple(
            TracedDelivery(
                shown_listed(one, hide),
                tuple(shown_run(run, hide) for run in runs.get(one.delivery.id, ())),
                tuple(shown_entry(entry, hide) for entry in entries.get(one.delivery.id, ())),
            )
            for one in several[:_DELIVERIES]
        )
        steps.append(TracedMessage(shown_message(known, message), deliveries, len(several) > _DELIVERIES))
    acts = (yield from transact(request_trace.request_audit(request_id, _ENTRIES))) if after is None else []
    return RequestTrace(
        request_id=request_id,
        steps=tuple(steps),
        audit=tuple(shown_entry(entry) for entry in acts),
        next=page[-1].id if len(found) > limit else None,
    )
