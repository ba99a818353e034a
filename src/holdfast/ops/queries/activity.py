"""Activity: the deliveries that were created or changed since the last call, found by indexes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from uuid import UUID

from holdfast.core.delivery import Status
from holdfast.core.errors import ConfigurationError
from holdfast.core.identity import first_id
from holdfast.ops.queries.redaction import shown_listed
from holdfast.ops.steps import TaskSteps, transact
from holdfast.stores.queries import query
from holdfast.stores.queries.query import MAX_PAGE, DeliverySummary, Filter

LATE = timedelta(seconds=5)
"""A transaction may commit this much later than the time in its ids, and a publisher's clock may be this much behind."""

_OPEN = 5 * MAX_PAGE
_REMEMBERED = 20 * MAX_PAGE
_ENDED = (Status.DELIVERED, Status.FAILED)

_State = tuple[Status, int, bool]


@dataclass(frozen=True, slots=True)
class ActivityCursor:
    """Where the next call continues: the last id and time, and the state in which each recent delivery was returned."""

    after: UUID
    since: datetime
    states: Mapping[UUID, _State] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Activity:
    """The changed deliveries in their current state, oldest change first, at the database's time `now`.

    `more`: the next call returns further changes at once.
    """

    changed: tuple[DeliverySummary, ...]
    now: datetime
    cursor: ActivityCursor
    more: bool


def activity(
    wanted: Filter | None = None, *, cursor: ActivityCursor | None = None, since: datetime | None = None
) -> TaskSteps[Activity]:
    """The deliveries that were created or changed since `cursor`, else since a time, else since now.

    New deliveries are a range of the primary key; failed runs are found by the index of runs; deliveries that were returned
    before they ended are read again by id. So a delivery that was created before the first call and succeeds at its first
    attempt is not returned. `wanted` selects by consumer, queue, type or message; a state is compared by the caller, because
    a delivery has several.
    """
    wanted = wanted or Filter()
    if wanted.statuses or wanted.dead or wanted.discarded is not None or wanted.ids is not None:
        raise ConfigurationError("activity cannot be filtered by state or id; filter the deliveries that it returns")
    now = yield from transact(query.clock())
    if cursor is None:
        begin = since or now
        cursor = ActivityCursor(first_id(begin), begin)
    states = dict(cursor.states)
    new = yield from transact(query.following_deliveries(wanted, cursor.after))
    runs = yield from transact(query.recent_runs(cursor.since))
    found = {one.delivery.id: one for one in new}
    unended = [id for id, (status, *_) in states.items() if status not in _ENDED][-_OPEN:]
    ids = [id for id in dict.fromkeys((*unended, *(id for id, _ in runs))) if id not in found]
    for start in range(0, len(ids), MAX_PAGE):
        chosen = replace(wanted, ids=tuple(ids[start : start + MAX_PAGE]))
        found |= {one.delivery.id: one for one in (yield from transact(query.deliveries(chosen, MAX_PAGE)))}
    changed = [one for id, one in found.items() if states.get(id) != _state(one)]
    for one in changed:
        states.pop(one.delivery.id, None)
        states[one.delivery.id] = _state(one)
    for id in list(states)[:-_REMEMBERED]:
        del states[id]
    after = new[-1].delivery.id if len(new) == MAX_PAGE else max(cursor.after, first_id(now - LATE))
    reached = runs[-1][1] if len(runs) == MAX_PAGE else max(cursor.since, now - LATE)
    shown = tuple(shown_listed(one) for one in sorted(changed, key=lambda one: changed_at(one, now)))
    return Activity(shown, now, ActivityCursor(after, reached, states), MAX_PAGE in (len(new), len(runs)))


def changed_at(listed: DeliverySummary, now: datetime) -> datetime:
    """When a delivery got its current state; `now` if the row does not contain it, as for one that waits for its retry."""
    row = listed.delivery
    if row.status is Status.IN_FLIGHT:
        return row.claimed_at or now
    return row.completed_at or (now if row.attempts else row.created_at)


def _state(listed: DeliverySummary) -> _State:
    row = listed.delivery
    return row.status, row.attempts, row.discarded_at is not None
