"""Deliveries, dead letters and jobs: lists and details."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from holdfast.core.delivery import Status
from holdfast.core.errors import NotFound
from holdfast.core.events.pattern import check_pattern
from holdfast.core.failures.frame import own_frame
from holdfast.core.message import Message
from holdfast.core.values.bounded_count import BoundedCount
from holdfast.ops.queries.flow_keys import delivery_flow
from holdfast.ops.queries.redaction import (
    redactor,
    shown_entry,
    shown_group,
    shown_listed,
    shown_message,
    shown_progress,
    shown_run,
    shown_value,
)
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin.actions import AuditEntry, audit
from holdfast.stores.deliveries.progress import JobProgress, progress_of
from holdfast.stores.deliveries.result import StoredResult, result_of
from holdfast.stores.deliveries.worker import live_workers
from holdfast.stores.messages.registry import consumers
from holdfast.stores.queries import delivery_counts, query
from holdfast.stores.queries.delivery_counts import DeadLetterCounts
from holdfast.stores.queries.failure import failing_runs
from holdfast.stores.queries.query import DeliverySummary, FailureGroup, Filter, Run, messages_with, paused_queues

JOBS = "job.*"
_ENTRIES = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDetail:
    """A delivery with its message, runs, audit entries and siblings.

    `alike` is the size of its failure group, or None if it is not a dead letter. `obstacles` are the reasons why a pending
    one does not run: a pause, a block, a limit, no live worker. `frame` is the last frame of the application in the
    traceback of the last run, as `file:line in function`. `flow_key` is its key if its consumer has flow control;
    `holds_up` counts the deliveries of the key that wait until this dead letter is replayed or discarded.
    `result` is what the handler returned, if it keeps its results; `progress` is what its last run reported, until it is
    delivered.
    """

    listed: DeliverySummary
    message: Message | None
    runs: tuple[Run, ...]
    audit: tuple[AuditEntry, ...]
    siblings: tuple[DeliverySummary, ...]
    alike: BoundedCount | None
    obstacles: tuple[str, ...]
    now: datetime
    frame: str | None = None
    flow_key: str | None = None
    holds_up: BoundedCount | None = None
    result: StoredResult | None = None
    progress: JobProgress | None = None


@dataclass(frozen=True, slots=True)
class Exported:
    """A delivery with its message, without declared secrets."""

    listed: DeliverySummary
    message: Message | None


def deliveries(
    wanted: Filter | None = None, *, limit: int = 50, before: UUID | None = None
) -> TaskSteps[list[DeliverySummary]]:
    """A page of deliveries, newest first; pass the last id as `before` for the next."""
    wanted = wanted or Filter()
    if wanted.type is not None:
        check_pattern(wanted.type)
    return [shown_listed(one) for one in (yield from transact(query.deliveries(wanted, limit, before)))]


def export(wanted: Filter | None = None, *, limit: int = 500, before: UUID | None = None) -> TaskSteps[list[Exported]]:
    """`deliveries`, each with its message."""
    page = yield from deliveries(wanted, limit=limit, before=before)
    found = yield from transact(messages_with(list({one.delivery.message_id for one in page})))
    known = yield from redactor()
    shown = {id: shown_message(known, message) for id, message in found.items()}
    return [Exported(one, shown.get(one.delivery.message_id)) for one in page]


def delivery(id: UUID) -> TaskSteps[DeliveryDetail]:
    """One delivery with its message, runs, audit entries, siblings and the size of its failure group."""
    found = yield from transact(query.deliveries(Filter(ids=(id,)), 1))
    if not found:
        if (yield from transact(query.messages(id=id, limit=1))):
            raise NotFound("delivery", id, f"it is a message: see `holdfast messages show {id}`")
        raise NotFound("delivery", id)
    return (yield from _detail(found[0]))


def job(id: UUID) -> TaskSteps[DeliveryDetail]:
    """One job, by the id of its delivery or the id that `enqueue` returned."""
    for one in (yield from transact(query.deliveries(Filter(ids=(id,)), 1))) or (
        yield from transact(query.deliveries_of(id))
    ):
        if one.type.startswith("job."):
            return (yield from _detail(one))
        command = "deliveries" if one.delivery.id == id else "messages"
        raise NotFound("job", id, f"it belongs to the event {one.type}: see `holdfast {command} show {id}`")
    raise NotFound("job", id)


def dead_letter_counts() -> TaskSteps[DeadLetterCounts | None]:
    """Dead letters by group and minute, counted once for `failure_groups`, `stats` and `trend`; None if there are too many."""
    return (yield from transact(delivery_counts.dead_letter_counts()))


def failure_groups(
    *, limit: int = 50, consumers: Sequence[str] = (), dead: DeadLetterCounts | None = None
) -> TaskSteps[list[FailureGroup]]:
    """Dead letters grouped by failure, largest group first, with the first generation and the frame of each group."""
    return (yield from _described((yield from transact(delivery_counts.failure_groups(limit, consumers, dead=dead)))))


def groups_where(matches: Callable[[FailureGroup], bool], limit: int) -> TaskSteps[list[FailureGroup]]:
    """The failure groups that match, largest first. Only these are counted."""
    every = yield from _described((yield from transact(delivery_counts.uncounted_groups())))
    kinds = [(one.fingerprint, one.consumer) for one in every if matches(one)]
    if not kinds:
        return []
    return (yield from _described((yield from transact(delivery_counts.failure_groups(limit, kinds=kinds)))))


def _described(found: Sequence[FailureGroup]) -> TaskSteps[list[FailureGroup]]:
    """Adds the generations and the frame to each group, and redacts it."""
    runs = yield from transact(failing_runs([(one.fingerprint, one.consumer, one.example) for one in found]))
    return [
        shown_group(
            replace(
                one,
                first_generation=run.first_generation,
                last_generation=run.last_generation,
                frame=own_frame(run.trace),
            )
        )
        for one, run in zip(found, runs, strict=True)
    ]


def now() -> TaskSteps[datetime]:
    """The time of the database."""
    return (yield from transact(query.clock()))


def _detail(one: DeliverySummary) -> TaskSteps[DeliveryDetail]:
    row = one.delivery
    message = (yield from transact(messages_with([row.message_id]))).get(row.message_id)
    known = yield from redactor()
    hide = None if message is None else known.hide(message.type, message.payload)
    runs = yield from transact(query.runs(row.id))
    entries = yield from transact(audit(_ENTRIES, target=("delivery", str(row.id))))
    siblings = [
        other for other in (yield from transact(query.deliveries_of(row.message_id))) if other.delivery.id != row.id
    ]
    alike = None
    if row.dead:
        alike = (
            BoundedCount(1)
            if row.fingerprint is None
            else (yield from transact(delivery_counts.group_size(row.consumer, row.fingerprint)))
        )
    obstacles = (yield from _obstacles(one)) if row.status is Status.PENDING else ()
    flow = (yield from delivery_flow(row.id, row.consumer)) if row.status is not Status.DELIVERED else None
    if flow is not None and row.status is Status.PENDING:
        obstacles += flow.obstacles
    result = (yield from transact(result_of(row.id))) if row.status is Status.DELIVERED else None
    if result is not None:
        result = result._replace(result=shown_value(known, one.type, result.result, hide) or "null")
    progress = None if row.status is Status.DELIVERED else (yield from transact(progress_of(row.id)))
    return DeliveryDetail(
        listed=shown_listed(one, hide),
        message=None if message is None else shown_message(known, message),
        runs=tuple(shown_run(run, hide) for run in runs),
        audit=tuple(shown_entry(entry, hide) for entry in entries),
        siblings=tuple(shown_listed(other, hide) for other in siblings),
        alike=alike,
        obstacles=obstacles,
        now=(yield from transact(query.clock())),
        frame=own_frame(next((run.trace for run in reversed(runs) if run.trace), None)),
        flow_key=None if flow is None else flow.key,
        holds_up=flow.state.waiting if flow is not None and flow.state.blocked_by == row.id else None,
        result=result,
        progress=None if progress is None else shown_progress(progress, hide),
    )


def _obstacles(one: DeliverySummary) -> TaskSteps[tuple[str, ...]]:
    row = one.delivery
    now = yield from transact(query.clock())
    found: list[str] = []
    if row.queue in (yield from transact(paused_queues())):
        found.append(f"queue {row.queue} is paused")
    for consumer in (yield from transact(consumers())):
        if consumer.name == row.consumer and consumer.paused_at is not None:
            found.append(f"consumer {row.consumer} is paused")
        if consumer.name == row.consumer and consumer.blocked_until is not None and consumer.blocked_until > now:
            found.append(f"consumer {row.consumer} is blocked: {consumer.blocked_resource} is unavailable")
    serving = [w for w in (yield from transact(live_workers())) if row.consumer in w.consumers]
    if not serving:
        found.append(f"no live worker serves {row.consumer}")
    elif not (here := [w for w in serving if w.serves(row.consumer, row.queue)]):
        found.append(f"no live worker serves {row.consumer} on queue {row.queue}")
    elif not any(w.generation >= row.generation for w in here):
        found.append(f"no live worker has generation {row.generation} or a later one")
    return tuple(found)
