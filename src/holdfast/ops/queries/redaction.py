"""Redaction: every task that returns texts or payloads redacts them here, so that no front end has to."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import orjson

from holdfast.core.delivery import FailureCycle
from holdfast.core.message import Message
from holdfast.core.redaction.redact import Redactor, redact_headers, redacted, scrub
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin.actions import AuditEntry
from holdfast.stores.admin.plan import StoredPlan
from holdfast.stores.admin.redaction import redactions
from holdfast.stores.deliveries.progress import JobProgress
from holdfast.stores.queries.query import DeliverySummary, FailureGroup, Run

Hide = Callable[[str], str] | None
"""Removes the secrets of one message from a text."""


def redactor() -> TaskSteps[Redactor]:
    """A redactor with all secrets that any app declared."""
    return Redactor((yield from transact(redactions())))


def shown_message(known: Redactor, message: Message) -> Message:
    """A message without its declared secrets and secret headers."""
    payload, headers = known.payload(message.type, message.payload), redact_headers(message.headers)
    if payload is message.payload and headers is message.headers:
        return message
    return replace(message, payload=payload, headers=headers)


def shown_messages(messages: Iterable[Message]) -> TaskSteps[list[Message]]:
    """`shown_message` for many."""
    known = yield from redactor()
    return [shown_message(known, message) for message in messages]


def shown_value(known: Redactor, type: str, text: str | None, hide: Hide) -> str | None:
    """A result or a signal without declared secret fields and without the secret values of its message."""
    if text is None or not known.paths(type):
        return text
    return orjson.dumps(scrub(known.value(type, orjson.loads(text)), hide)).decode()


def shown_listed(listed: DeliverySummary, hide: Hide = None) -> DeliverySummary:
    """A delivery with redacted errors, including earlier cycles."""
    row = listed.delivery
    if row.last_error is None and not row.failure_history:
        return listed
    history = tuple(_shown_cycle(cycle, hide) for cycle in row.failure_history)
    return replace(listed, delivery=replace(row, last_error=_text(row.last_error, hide), failure_history=history))


def shown_run(run: Run, hide: Hide = None) -> Run:
    """A run with redacted error, trace and detail."""
    detail = scrub(run.detail, hide)
    assert detail is None or isinstance(detail, Mapping)
    return replace(run, error=_text(run.error, hide), trace=_text(run.trace, hide), detail=detail)


def shown_progress(progress: JobProgress, hide: Hide = None) -> JobProgress:
    """Progress with a redacted note."""
    return progress._replace(note=_text(progress.note, hide))


def shown_entry(entry: AuditEntry, hide: Hide = None) -> AuditEntry:
    """An audit entry with redacted reason and detail."""
    return replace(entry, reason=_text(entry.reason, hide), detail=scrub(entry.detail, hide))


def shown_plan(plan: StoredPlan) -> StoredPlan:
    """A plan with redacted reasons."""
    if plan.save_reason is None and plan.start_reason is None:
        return plan
    return replace(plan, save_reason=_text(plan.save_reason, None), start_reason=_text(plan.start_reason, None))


def shown_group(group: FailureGroup) -> FailureGroup:
    """A failure group with a redacted example."""
    return replace(group, last_error=_text(group.last_error, None))


def _shown_cycle(cycle: FailureCycle, hide: Hide) -> FailureCycle:
    return replace(cycle, last_error=_text(cycle.last_error, hide), reason=_text(cycle.reason, hide))


def _text(text: str | None, hide: Hide) -> str | None:
    return None if text is None else redacted(text, hide)
