"""Trails: what one request left behind, found by its id alone."""

from holdfast.core.message import Message
from holdfast.stores.operate import AuditEntry, read_entry
from holdfast.stores.operation import Query, Steps, operation
from holdfast.stores.query import read_message

_LAST = 2**63 - 1


@operation(reads=True)
def request_messages(request_id: str, limit: int) -> Steps[list[Message]]:
    """The messages that carry this request id, oldest first."""
    rows = yield Query("request_messages", {"request_id": request_id}, limit=limit)
    return [read_message(row) for row in rows]


@operation(reads=True)
def request_audit(request_id: str, limit: int) -> Steps[list[AuditEntry]]:
    """What operators did in this request, newest first."""
    values = {"request_id": request_id, "before": _LAST}
    rows = yield Query("audit", values, slots=(("where", ("where_audit_request",)),), limit=limit)
    return [read_entry(row) for row in rows]
