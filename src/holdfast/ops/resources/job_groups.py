"""Groups of jobs: lists with progress, one group with its dead letters, and its cancellation."""

from dataclasses import dataclass, replace
from datetime import datetime
from uuid import UUID

from holdfast.core.errors import ConfigurationError, NotFound
from holdfast.core.redaction.redact import redacted
from holdfast.ops.queries.pages import below, is_since
from holdfast.ops.queries.redaction import shown_entry
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.admin.actions import AuditEntry, audit
from holdfast.stores.groups import group, query
from holdfast.stores.groups.query import FailedMember, GroupProgress, MemberProgress
from holdfast.stores.queries.pagination import Slice
from holdfast.stores.queries.query import clock

_ENTRIES = 20
MOST_GROUPS = 100
"""The number of groups on a page: each is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDetail:
    """A group with its first dead letters, the first running jobs that report their progress, and its audit entries."""

    progress: GroupProgress
    dead_letters: tuple[FailedMember, ...]
    running_jobs: tuple[MemberProgress, ...]
    audit: tuple[AuditEntry, ...]
    now: datetime


def job_groups(
    *,
    limit: int = 20,
    before: UUID | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
) -> TaskSteps[Slice[GroupProgress]]:
    """A page of groups of jobs made in a time range, newest first, with their jobs by state; pass `next` as `before` for
    the next."""
    if not 1 <= limit <= MOST_GROUPS:
        raise ConfigurationError(f"limit is {limit}; a page has 1 to {MOST_GROUPS} groups, read the next page for more")
    found = yield from transact(query.groups_page(limit, below(before, until)))
    items = [one for one in found.items if is_since(one.id, since)]
    return Slice(items, found.next if len(items) == len(found.items) else None)


def job_group(id: UUID | str) -> TaskSteps[GroupDetail]:
    """One group of jobs with its jobs by stage and state."""
    known = _group_id(id)
    progress = yield from transact(query.group_progress(known))
    dead = yield from transact(query.failed_members(known))
    running = yield from transact(query.running_members(known))
    entries = yield from transact(audit(_ENTRIES, target=(group.AUDITED_GROUP, str(known))))
    return GroupDetail(
        progress=progress,
        dead_letters=tuple(
            one._replace(error=None if one.error is None else redacted(one.error, None)) for one in dead
        ),
        running_jobs=tuple(
            one._replace(note=None if one.note is None else redacted(one.note, None)) for one in running
        ),
        audit=tuple(shown_entry(replace(one)) for one in entries),
        now=(yield from transact(clock())),
    )


def cancel_job_group(id: UUID | str, *, actor: str, reason: str | None = None) -> TaskSteps[bool]:
    """Cancels the unfinished jobs of a group, audited; false if all had ended."""
    return bool((yield from transact(group.cancel_group(_group_id(id), actor, reason))))


def _group_id(id: UUID | str) -> UUID:
    try:
        return UUID(str(id))
    except ValueError:
        raise NotFound("group", id, "an id is a UUID; `holdfast groups list` shows the ids") from None
