"""Everything that one request caused, found by its id in a fixed number of queries per page."""

from collections.abc import Sequence
from uuid import UUID

from holdfast.core.identity import delivery_range
from holdfast.core.message import Message
from holdfast.stores.admin.actions import AuditEntry, read_entry
from holdfast.stores.dialect import as_uuid
from holdfast.stores.operation import Columns, Query, Steps, operation
from holdfast.stores.queries.query import DeliverySummary, Run, read_message, read_run, read_summary

FIRST = UUID(int=0)
_LAST = 2**63 - 1


@operation(reads=True)
def request_messages(request_id: str, limit: int, after: UUID = FIRST) -> Steps[list[Message]]:
    """The messages with this request id, oldest first, after the message `after`."""
    rows = yield Query("request_messages", {"request_id": request_id, "after": after}, limit=limit)
    return [read_message(row) for row in rows]


@operation(reads=True)
def request_audit(request_id: str, limit: int) -> Steps[list[AuditEntry]]:
    """The operator actions in this request, newest first."""
    values = {"request_id": request_id, "before": _LAST}
    rows = yield Query("audit", values, slots=(("where", ("where_audit_request",)),), limit=limit)
    return [read_entry(row) for row in rows]


@operation(reads=True)
def trail_deliveries(messages: Sequence[UUID], most: int) -> Steps[dict[UUID, list[DeliverySummary]]]:
    """The deliveries of these messages, by consumer; at most `most` per message."""
    ranges = [delivery_range(id) for id in messages]
    batch: Columns = {
        "message_id": list(messages),
        "low": [low for low, _ in ranges],
        "high": [high for _, high in ranges],
    }
    found: dict[UUID, list[DeliverySummary]] = {}
    for row in (yield Query("trail_deliveries", {"most": most}, {"messages": batch})):
        listed = read_summary(row)
        found.setdefault(listed.delivery.message_id, []).append(listed)
    return {id: sorted(own, key=lambda one: one.delivery.consumer) for id, own in found.items()}


@operation(reads=True)
def trail_runs(deliveries: Sequence[UUID], most: int) -> Steps[dict[UUID, list[Run]]]:
    """The last recorded attempts of these deliveries, in order; at most `most` per delivery."""
    found: dict[UUID, list[Run]] = {}
    batch: Columns = {"delivery_id": list(deliveries)}
    for id, *row in (yield Query("trail_runs", {"most": most}, {"deliveries": batch})):
        found.setdefault(as_uuid(id), []).insert(0, read_run(row))
    return found


@operation(reads=True)
def trail_audit(deliveries: Sequence[UUID], most: int) -> Steps[dict[UUID, list[AuditEntry]]]:
    """The operator actions on these deliveries, newest first; at most `most` per delivery."""
    found: dict[UUID, list[AuditEntry]] = {}
    batch: Columns = {"delivery_id": list(deliveries)}
    for row in (yield Query("trail_audit", {"most": most}, {"deliveries": batch})):
        entry = read_entry(row)
        found.setdefault(UUID(entry.target), []).append(entry)
    return found
