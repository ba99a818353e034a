"""Groups: their start, their cancellation and their end."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from holdfast.core.errors import NotFound
from holdfast.core.group import OnFailure, StageInput
from holdfast.core.identity import delivery_id
from holdfast.core.message import NewMessage
from holdfast.core.values.text import sanitize
from holdfast.stores.admin.actions import audited
from holdfast.stores.dialect import as_uuid
from holdfast.stores.messages.fanout import Fanout
from holdfast.stores.messages.publish import Published, publish
from holdfast.stores.operation import Query, Steps, columns, operation

AUDITED_GROUP = "group"
_MEMBER = ("stage", "position", "delivery_id", "message_id", "consumer", "input", "on_failure")
_CHUNK = 1000
_PRUNED = 100


class NewMember(NamedTuple):
    """A job of a new group, with its position."""

    message: NewMessage
    stage: int
    position: int
    input: StageInput | None = None
    on_failure: OnFailure | None = None


class NewGroup(NamedTuple):
    """A group to start."""

    id: UUID
    label: str
    key: str | None
    members: Sequence[NewMember]


@operation
def start_group(group: NewGroup, fanout: Fanout, *, own: bool) -> Steps[Published]:
    """Stores a group with its jobs. A repeated key stores nothing and returns the first group.

    A job whose key or unique key exists is the existing job: the group waits for it too.
    """
    while not (yield Query("store_group", {"id": group.id, "label": group.label, "key": group.key})):
        if found := (yield Query("find_group", {"key": group.key})):
            return Published(as_uuid(found[0][0]), False)
        # The group with this key was pruned between the two queries: try again.
    stored = yield from publish([member.message for member in group.members], fanout, own=own).start()
    rows = [_row(member, one.id) for member, one in zip(group.members, stored, strict=True)]
    for start in range(0, len(rows), _CHUNK):
        yield Query("store_members", {"group": group.id}, {"members": columns(_MEMBER, rows[start : start + _CHUNK])})
    return Published(group.id, True)


@operation
def cancel_group(id: UUID, actor: str, reason: str | None) -> Steps[int]:
    """Cancels the unfinished jobs of a group in one transaction, audited; returns their number.

    A current run can no longer complete. Raises `NotFound` for an unknown group.
    """
    if not (yield Query("mark_cancelled_group", {"group": id})):
        raise NotFound("group", id, "`holdfast groups list` shows the ids")
    text = sanitize(f"group {id} was cancelled{f': {reason}' if reason else ''}", 1000)
    cancelled = len((yield Query("cancel_members", {"group": id, "reason": text})))
    yield audited(actor, "cancel", AUDITED_GROUP, str(id), reason, {"cancelled": cancelled})
    return cancelled


@operation
def prune_groups(cursor: UUID, older_than: timedelta) -> Steps[UUID | None]:
    """Removes a batch of groups whose deliveries were all removed; returns the next cursor, if any."""
    rows = yield Query("prune_groups", {"cursor": cursor, "older_than": older_than}, limit=_PRUNED)
    return max(as_uuid(row[0]) for row in rows) if len(rows) == _PRUNED else None


def _row(member: NewMember, message_id: UUID) -> tuple[object, ...]:
    (address,) = member.message.addressed
    consumer = address.consumer
    id = delivery_id(message_id, consumer)
    return (
        member.stage,
        member.position,
        id,
        message_id,
        consumer,
        None if member.input is None else member.input.value,
        None if member.on_failure is None else member.on_failure.value,
    )
